//! The schema of one version of a CRD: the stored form of an object, and its errors.
//!
//! The API server has this order: prune, drop nulls, set defaults, validate, evaluate rules.

mod cel;
mod embedded;
pub mod formats;
pub mod go;
mod lists;
pub mod node;
mod ratchet;
mod regexp;
pub mod rules;
mod shape;
mod validate;

use serde_json::Value;

use super::{
    Release,
    request::{Part, Unknown},
    status::Cause,
};
use node::Node;
use ratchet::Pair;
pub use shape::{read_numbers, store_numbers};

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    pub root: Node,
}

/// Result of a validation.
#[derive(Debug, Default)]
pub struct Checked {
    pub causes: Vec<Cause>,
    /// Warnings for broken rules at unchanged values.
    pub warnings: Vec<String>,
}

impl Schema {
    /// Compiles an `openAPIV3Schema` for this version of Kubernetes.
    ///
    /// # Errors
    /// A keyword, a format or a rule is not modelled.
    pub fn compile(schema: &Value, release: Release) -> Result<Self, Unknown> {
        Node::parse(schema, release)
            .map(|root| Self { root })
            .map_err(Unknown)
    }

    /// Removes unknown fields and nulls that are not allowed. Returns the paths of the unknown fields, or the parser's error for
    /// the metadata of an embedded resource.
    pub fn prune(&self, object: &mut Value) -> Result<Vec<String>, String> {
        let unknown = shape::prune(object, &self.root);
        shape::drop_nulls(object, Some(&self.root));
        shape::read_embedded(object, &self.root)?;
        Ok(unknown)
    }

    /// Checks a regular expression.
    pub fn check_pattern(text: &str) -> Result<(), String> {
        regexp::Pattern::new(text).map(|_| ())
    }

    /// Removes unknown fields from a default, and returns whether there are any.
    pub fn prune_default(&self, default: &mut Value) -> bool {
        !shape::prune_at(default, &self.root).is_empty()
    }

    /// Validates a default of a schema.
    pub fn validate_default(&self, default: &Value, path: &str) -> Vec<Cause> {
        validate::check(default, &self.root, None, path)
    }

    /// Sets the defaults.
    pub fn fill(&self, object: &mut Value) {
        shape::fill(object, &self.root);
    }

    /// Validates an object by the schema alone, without rules.
    pub fn validate(&self, new: &Value, old: Option<&Value>, part: Part) -> Vec<Cause> {
        let root = &self.root;
        if part != Part::Status {
            let pair = old.map(|old| Pair {
                new,
                old,
                node: root,
            });
            return validate::check(new, root, pair, "");
        }
        let (Some(new), Some(node)) = (new.get("status"), root.properties.get("status")) else {
            return Vec::new();
        };
        let old = old.and_then(|old| old.get("status"));
        let pair = old.map(|old| Pair { new, old, node });
        validate::check(new, node, pair, "status")
    }

    /// Validates embedded resources, and the uniqueness in lists. An error in a list does not count if the old object has one.
    pub fn check_structure(&self, new: &Value, old: Option<&Value>, part: Part) -> Vec<Cause> {
        let mut causes = Vec::new();
        if part != Part::Status {
            causes.extend(embedded::check(new, &self.root));
        }
        let is_ratcheted = old.is_some_and(|old| !lists::check(old, &self.root).is_empty());
        if !is_ratcheted {
            causes.extend(lists::check(new, &self.root));
        }
        causes
    }

    /// Evaluates the rules, unless there are errors that prevent it.
    pub fn check_rules(
        &self,
        new: &Value,
        old: Option<&Value>,
        earlier: &[Cause],
    ) -> Result<Checked, Unknown> {
        if !self.root.has_rules {
            return Ok(Checked::default());
        }
        let blocking = |cause: &Cause| {
            matches!(
                cause.reason,
                "FieldValueNotSupported"
                    | "FieldValueRequired"
                    | "FieldValueTooLong"
                    | "FieldValueTooMany"
                    | "FieldValueTypeInvalid"
            )
        };
        if earlier.iter().any(blocking) {
            let words = "some validation rules were not checked because the object was invalid; correct the existing errors to \
                         complete validation";
            let causes = vec![Cause::invalid(
                "<nil>",
                go::shown(&Value::Null, self.root.release),
                words,
            )];
            return Ok(Checked {
                causes,
                warnings: Vec::new(),
            });
        }
        let rules::Broken { causes, warnings } = rules::check(new, old, &self.root)?;
        Ok(Checked { causes, warnings })
    }
}
