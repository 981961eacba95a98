//! Ratcheting: an error at a value that is not changed does not count (`k8s.io/apiserver/pkg/cel/common/equality.go`).

use serde_json::{Map, Value};

use super::node::{List, Node};

/// A new value and the old value at the same place.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    pub new: &'a Value,
    pub old: &'a Value,
    pub node: &'a Node,
}

impl Pair<'_> {
    /// Returns the pair of a field, if both values have it and the schema knows it.
    pub fn field(self, name: &str) -> Option<Self> {
        let (new, old) = (self.new.as_object()?, self.old.as_object()?);
        Some(Self {
            new: new.get(name)?,
            old: old.get(name)?,
            node: self.node.child(name)?,
        })
    }

    /// Returns the pair of an element. Only lists of type `map` have it.
    pub fn element(self, at: usize) -> Option<Self> {
        let new = self.new.as_array()?.get(at)?;
        let old = element_of(self.node, self.old.as_array()?, new)?;
        let node = self.node.items.as_deref()?;
        Some(Self { new, old, node })
    }

    /// Returns whether the values are equal. The order of a list of type `map` is irrelevant.
    pub fn is_unchanged(self) -> bool {
        match (self.new, self.old) {
            (Value::Array(new), Value::Array(old)) => {
                if new.len() != old.len() {
                    return false;
                }
                if !matches!(self.node.list, List::Map(_)) {
                    return new == old;
                }
                (0..new.len()).all(|at| self.element(at).is_some_and(Self::is_unchanged))
            }
            (Value::Object(new), Value::Object(old)) => {
                new.len() == old.len()
                    && (new.keys()).all(|name| self.field(name).is_some_and(Self::is_unchanged))
            }
            (new, old) => new == old,
        }
    }
}

/// Returns the old element of a list of type `map` that has the keys of `new`.
pub fn element_of<'a>(node: &Node, old: &'a [Value], new: &Value) -> Option<&'a Value> {
    let List::Map(keys) = &node.list else {
        return None;
    };
    let wanted = key(keys, new.as_object()?)?;
    let mut old = old.iter();
    old.find(|old| old.as_object().and_then(|old| key(keys, old)).as_ref() == Some(&wanted))
}

/// Returns the keys of an element, if it has all of them and they are scalars.
fn key<'a>(keys: &[String], element: &'a Map<String, Value>) -> Option<Vec<&'a Value>> {
    let key = keys.iter().map(|name| element.get(name));
    key.map(|value| value.filter(|it| !it.is_null() && !it.is_object() && !it.is_array()))
        .collect()
}
