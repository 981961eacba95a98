//! The stored objects at a moment.

use std::{any::TypeId, collections::BTreeMap, sync::Arc};

use kube::Resource;
use operator_runtime::Key;
use operator_testkit::api_server;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Verdict;
use crate::outside::{States, System};

/// Objects by the keys of the store.
pub(crate) type Objects = BTreeMap<api_server::Key, Arc<Value>>;

/// The stored objects and the systems outside the cluster at a moment, seen from one object. A reconciler gets another type of this
/// name, `operator_runtime::View`.
pub struct View<'a> {
    key: Key,
    uid: String,
    object: Option<&'a Value>,
    objects: &'a Objects,
    /// State of one object that differs from `objects`.
    except: Option<(&'a api_server::Key, Option<&'a Arc<Value>>)>,
    systems: &'a States,
}

/// Returns `Ok` if the condition holds, else the message.
///
/// # Errors
/// The message.
pub fn check(holds: bool, message: &str) -> Verdict {
    if holds {
        Ok(())
    } else {
        Err(message.to_owned())
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl<'a> View<'a> {
    pub(crate) fn of(key: Key, objects: &'a Objects, systems: &'a States) -> Self {
        Self {
            key,
            uid: String::new(),
            object: None,
            objects,
            except: None,
            systems,
        }
    }

    /// Looks at the objects from this one.
    pub(crate) fn seen_from(mut self, object: &'a Value) -> Self {
        text(&object["metadata"]["uid"]).clone_into(&mut self.uid);
        self.object = Some(object);
        self
    }

    /// Replaces the state of one object.
    pub(crate) fn except(
        mut self,
        key: &'a api_server::Key,
        object: Option<&'a Arc<Value>>,
    ) -> Self {
        self.except = Some((key, object));
        self
    }

    /// Returns the key of the checked object.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the object of this name, in the namespace of the checked one.
    #[must_use]
    pub fn get<K: Resource<DynamicType = ()> + DeserializeOwned>(&self, name: &str) -> Option<K> {
        let key = self.key.sibling(name);
        let mut all = self.raw::<K>();
        let (_, object) = all.find(|(its, _)| {
            its.name == name && (its.namespace.is_empty() || its.namespace == key.namespace())
        })?;
        serde_json::from_value(Value::clone(object)).ok()
    }

    /// Returns all objects of a resource type, in all namespaces. Objects that cannot be decoded are left out.
    pub fn all<K: Resource<DynamicType = ()> + DeserializeOwned>(&self) -> impl Iterator<Item = K> {
        let all = self.raw::<K>();
        all.filter_map(|(_, object)| serde_json::from_value(Value::clone(object)).ok())
    }

    /// Returns the object of this type that the checked object controls.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn owned<K: Resource<DynamicType = ()> + DeserializeOwned>(&self) -> Result<K, String> {
        let kind = K::kind(&());
        let mut all = self.raw::<K>();
        let mut its = all.by_ref().filter(|(_, object)| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            let mut owners = owners.into_iter().flatten();
            owners.any(|it| it["controller"] == true && text(&it["uid"]) == self.uid)
        });
        let (Some((_, object)), None) = (its.next(), its.next()) else {
            return Err(format!("it does not control exactly one {kind}"));
        };
        serde_json::from_value(Value::clone(object)).map_err(|error| format!("{kind}: {error}"))
    }

    /// Returns the status and the reason of a condition of the checked object. Empty if it does not exist.
    #[must_use]
    pub fn condition(&self, of_type: &str) -> (&str, &str) {
        let all = self.object.map(|object| &object["status"]["conditions"]);
        let mut all = all.and_then(Value::as_array).into_iter().flatten();
        let one = all.find(|it| it["type"] == of_type);
        one.map(|it| (text(&it["status"]), text(&it["reason"])))
            .unwrap_or_default()
    }

    /// Checks a condition of the checked object.
    ///
    /// # Errors
    /// The actual status and reason.
    pub fn is_condition(&self, of_type: &str, status: &str, reason: &str) -> Verdict {
        let is = self.condition(of_type);
        let message = format!("the condition {of_type} is {is:?}, not {status} ({reason})");
        check(is == (status, reason), &message)
    }

    /// Returns the state of a system outside the cluster.
    #[must_use]
    pub fn outside<T: System>(&self) -> Arc<T> {
        let state = self.systems.get(&TypeId::of::<T>()).cloned();
        let state = state.and_then(|it| it.downcast().ok());
        state.unwrap_or_default()
    }

    fn raw<K: Resource<DynamicType = ()>>(
        &self,
    ) -> impl Iterator<Item = (&api_server::Key, &Arc<Value>)> {
        let is_it = |key: &api_server::Key| {
            let info = key.kind.info();
            info.plural == K::plural(&()) && info.group == K::group(&())
        };
        let (excepted, instead) = self.except.unzip();
        let others = self.objects.iter();
        let others = others.filter(move |(key, _)| Some(*key) != excepted && is_it(key));
        let one = excepted.zip(instead.flatten());
        others.chain(one.filter(move |(key, _)| is_it(key)))
    }
}
