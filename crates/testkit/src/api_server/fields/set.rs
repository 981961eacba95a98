//! Sets of fields (`structured-merge-diff/fieldpath`).

use std::{
    cmp::Ordering,
    collections::{BTreeMap, btree_map::Entry},
};

use serde_json::Value;

use super::types::Ref;

/// A step from a value to a value in it. In the order of Go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Field(String),
    /// The element of a list with these keys, sorted by name.
    Key(Vec<(String, Scalar)>),
    /// The element of a set.
    Item(Scalar),
    Index(i64),
}

/// A value with an order.
#[derive(Clone, Debug)]
pub struct Scalar(pub Value);

impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> Ordering {
        fn rank(value: &Value) -> u8 {
            match value {
                Value::Number(_) => 0,
                Value::String(_) => 1,
                Value::Bool(_) => 2,
                Value::Array(_) => 3,
                Value::Object(_) => 4,
                Value::Null => 5,
            }
        }
        match (&self.0, &other.0) {
            (Value::Number(a), Value::Number(b)) => {
                let float = |number: &serde_json::Number| number.as_f64().unwrap_or_default();
                match (a.as_i64(), b.as_i64()) {
                    (Some(a), Some(b)) => a.cmp(&b),
                    (Some(_) | None, _) => float(a).total_cmp(&float(b)),
                }
            }
            (Value::String(a), Value::String(b)) => a.cmp(b),
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (a, b) if rank(a) == rank(b) => a.to_string().cmp(&b.to_string()),
            (a, b) => rank(a).cmp(&rank(b)),
        }
    }
}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Scalar {}

/// A set of fields, as a tree of steps. No node is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set(BTreeMap<Step, Node>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub is_member: bool,
    pub below: Set,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.is_member && self.below.is_empty()
    }
}

impl Set {
    /// Returns the set of these paths of fields.
    pub fn of(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            let mut below = Self::default();
            for (at, name) in path.iter().enumerate().rev() {
                let is_member = at + 1 == path.len();
                let mut outer = Self::default();
                outer.add(Step::Field((*name).to_owned()), is_member, below);
                below = outer;
            }
            set = set.union(below);
        }
        set
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Step, &Node)> {
        self.0.iter()
    }

    /// Adds a step, unless the node is empty.
    pub fn add(&mut self, step: Step, is_member: bool, below: Self) {
        if !is_member && below.is_empty() {
            return;
        }
        match self.0.entry(step) {
            Entry::Vacant(place) => _ = place.insert(Node { is_member, below }),
            Entry::Occupied(mut place) => {
                let node = place.get_mut();
                node.is_member |= is_member;
                node.below = std::mem::take(&mut node.below).union(below);
            }
        }
    }

    pub fn below(&self, step: &Step) -> Option<&Self> {
        let node = self.0.get(step)?;
        (!node.below.is_empty()).then_some(&node.below)
    }

    pub fn has(&self, step: &Step) -> bool {
        self.0.get(step).is_some_and(|node| node.is_member)
    }

    /// Returns whether the set has this path of fields.
    pub fn has_path(&self, path: &[&str]) -> bool {
        let Some((first, rest)) = path.split_first() else {
            return false;
        };
        let node = self.0.get(&Step::Field((*first).to_owned()));
        node.is_some_and(|node| {
            if rest.is_empty() {
                node.is_member
            } else {
                node.below.has_path(rest)
            }
        })
    }

    pub fn union(mut self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        for (step, node) in other.0 {
            self.add(step, node.is_member, node.below);
        }
        self
    }

    pub fn intersection(&self, other: &Self) -> Self {
        let mut both = Self::default();
        for (step, node) in &self.0 {
            if let Some(other) = other.0.get(step) {
                let below = node.below.intersection(&other.below);
                both.add(step.clone(), node.is_member && other.is_member, below);
            }
        }
        both
    }

    /// Removes the members of the other set.
    pub fn remove(&mut self, other: &Self) {
        self.remove_with(other, false);
    }

    /// Removes the members of the other set with everything below.
    pub fn remove_all(&mut self, other: &Self) {
        self.remove_with(other, true);
    }

    fn remove_with(&mut self, other: &Self, all: bool) {
        for (step, gone) in &other.0 {
            let Entry::Occupied(mut place) = self.0.entry(step.clone()) else {
                continue;
            };
            let node = place.get_mut();
            if gone.is_member {
                node.is_member = false;
                if all {
                    node.below = Self::default();
                }
            }
            node.below.remove_with(&gone.below, all);
            if node.is_empty() {
                place.remove();
            }
        }
    }

    pub fn without(mut self, other: &Self) -> Self {
        self.remove(other);
        self
    }

    /// Returns the set with all declared fields that have members below (`EnsureNamedFieldsAreMembers`).
    pub fn with_named(&self, of: &Ref) -> Self {
        let of = of.get();
        let nodes = self.0.iter().map(|(step, node)| {
            let (is_named, below) = match step {
                Step::Field(name) => match of.map.as_ref() {
                    Some(map) => (map.fields.contains_key(name), map.field(name)),
                    None => (false, None),
                },
                Step::Key(_) => (false, of.list.as_ref().map(|list| &list.of)),
                Step::Item(_) | Step::Index(_) => (false, None),
            };
            let node = Node {
                is_member: node.is_member || is_named,
                below: below.map_or_else(|| node.below.clone(), |of| node.below.with_named(of)),
            };
            (step.clone(), node)
        });
        Self(nodes.collect())
    }

    /// Calls `each` with all members. The members of a level come first.
    pub fn paths<'a>(&'a self, path: &mut Vec<&'a Step>, each: &mut impl FnMut(&[&'a Step])) {
        for (step, _) in self.0.iter().filter(|(_, node)| node.is_member) {
            path.push(step);
            each(path);
            path.pop();
        }
        for (step, node) in &self.0 {
            path.push(step);
            node.below.paths(path, each);
            path.pop();
        }
    }
}
