//! The author's part of a simulation: its [`Operator`], and a [`Subject`] for each reconciled resource type.
//!
//! The simulation runs the author's `build` once to learn the resource types, the requests and the permissions. It derives the
//! users' actions from the schema of the CRD. It checks rules that hold for every operator on the runtime, and the rules of the
//! subject.

mod operator;
mod schema;
pub(crate) mod users;
pub(crate) mod view;

use std::fmt;

use kube::Resource;
use operator_runtime::Key;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use operator::Operator;
pub use users::Meddling;
pub(crate) use users::meddle;
pub use view::{View, check};

use super::draw::Draws;

/// Result of a check. The error describes the difference from the desired state.
pub type Verdict = Result<(), String>;

/// A reconciled resource type under simulation.
///
/// Only [`settled`](Self::settled) is required. It is called at the end of a run, after the end of all faults and actions, and
/// after a time in which the operator can react.
pub trait Subject: Send + Sync + 'static {
    /// The object with its spec. The struct that `#[derive(CustomResource)]` generates is enough.
    type Object: Resource<DynamicType = ()> + DeserializeOwned + fmt::Debug;

    /// Checks that an object is in its desired state, or that its status reports why not.
    ///
    /// It is not called for an object that is paused, terminating or invalid, or if another owner has an object of the name that
    /// the operator wants. Then the simulation checks the conditions `Paused` and `Ready`.
    ///
    /// # Errors
    /// The difference from the desired state.
    fn settled(&self, object: &Self::Object, view: &View<'_>) -> Verdict;

    /// Checks that nothing is left of a deleted object: at its deletion by the operator, and at the end of a run. The garbage
    /// collector deletes the owned objects, so only systems outside the cluster need a check. `owned` and `condition` of the view find
    /// nothing, because the object no longer exists.
    ///
    /// # Errors
    /// A description of the remains.
    fn gone(&self, _key: &Key, _view: &View<'_>) -> Verdict {
        Ok(())
    }

    /// Checks a rule at each change: of an object of any kind, or of a system outside the cluster. Faults do not excuse a violation.
    /// The `key` of a view is the changed object, or empty. `owned` and `condition` find nothing: use `all`, `get` and `outside`.
    ///
    /// # Errors
    /// A description of the violation.
    fn always(&self, _before: &View<'_>, _now: &View<'_>) -> Verdict {
        Ok(())
    }

    /// Draws a value for a field of the spec, such as `spec.secretName`, or `spec.ports[].name` in a list. `None`: a value by the
    /// schema of the first version of the CRD, by types, enums, bounds and lengths alone. So a field with a `pattern`, a `format` or a
    /// rule needs a value. The simulation does not begin if all drawn objects are invalid.
    ///
    /// A field that names another object needs few names, so that the object exists.
    fn values(&self, _field: &str, _draw: &mut Draws) -> Option<Value> {
        None
    }

    /// Draws objects that the operator reads, and that users create, change and delete, such as Secrets. Each draw returns the same
    /// names, with other contents. Only built-in kinds are supported, in the namespace of the reconciled objects. An operator that
    /// watches custom resources of another operator needs a [`Program`](crate::program::Program) of its own.
    fn others(&self, _draw: &mut Draws) -> Vec<Value> {
        Vec::new()
    }
}

/// A [`Subject`] without its type.
pub(crate) trait AnySubject: Send + Sync {
    fn plural(&self) -> String;
    fn is_settled(&self, object: &Value, view: &View<'_>) -> Verdict;
    fn is_gone(&self, key: &Key, view: &View<'_>) -> Verdict;
    fn holds(&self, before: &View<'_>, now: &View<'_>) -> Verdict;
    fn value(&self, field: &str, draw: &mut Draws) -> Option<Value>;
    fn objects_of_others(&self, draw: &mut Draws) -> Vec<Value>;
}

impl<S: Subject> AnySubject for S {
    fn plural(&self) -> String {
        S::Object::plural(&()).into_owned()
    }

    fn is_settled(&self, object: &Value, view: &View<'_>) -> Verdict {
        match serde_json::from_value(object.clone()) {
            Ok(object) => self.settled(&object, view),
            // The schema forbids it, so it is older than the schema.
            Err(_) => view.is_condition("Ready", "False", "InvalidSpec"),
        }
    }

    fn is_gone(&self, key: &Key, view: &View<'_>) -> Verdict {
        self.gone(key, view)
    }

    fn holds(&self, before: &View<'_>, now: &View<'_>) -> Verdict {
        self.always(before, now)
    }

    fn value(&self, field: &str, draw: &mut Draws) -> Option<Value> {
        self.values(field, draw)
    }

    fn objects_of_others(&self, draw: &mut Draws) -> Vec<Value> {
        self.others(draw)
    }
}
