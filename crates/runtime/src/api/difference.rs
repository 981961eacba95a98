//! The patch that makes an object contain a desired one.

pub(crate) mod changes;
mod quantity;
pub(crate) mod schema;
#[cfg(test)]
mod tests;

use std::ptr;

use serde_json::{Map, Value, json};

use crate::api::{
    difference::schema::{Field, Key, PLAIN},
    kind::Kind,
    merge_keys::{KINDS, OBJECT_META},
};

/// Levels that are compared member by member. `serde_json` does not read deeper values either.
const DEPTH: usize = 128;

/// Compares the desired state of an object with its actual state.
///
/// The desired object is a manifest with only the fields that the controller is responsible for. The API server sets defaults,
/// and other clients change other fields: neither is a difference.
///
/// ```
/// use k8s_openapi::api::apps::v1::Deployment;
/// use operator_runtime::{Comparison, Kind};
/// use serde_json::json;
///
/// let container = json!({
///     "name": "web",
///     "image": "web:2",
///     "resources": { "limits": { "cpu": 1, "memory": "1024Mi" } },
/// });
/// let desired = json!({ "spec": { "template": { "spec": { "containers": [container] } } } });
/// let web = json!({
///     "name": "web",
///     "image": "web:1",
///     "imagePullPolicy": "IfNotPresent",
///     "resources": { "limits": { "cpu": "1", "memory": "1Gi" } },
/// });
/// let injected = json!({ "name": "proxy", "image": "proxy:1" });
/// let pod = json!({ "containers": [web, injected] });
/// let actual = json!({ "spec": { "replicas": 3, "template": { "spec": pod } } });
///
/// let comparison = Comparison::of(Kind::of::<Deployment>());
/// let container = json!({ "name": "web", "image": "web:2" });
/// let patch = json!({ "spec": { "template": { "spec": { "containers": [container] } } } });
/// assert_eq!(comparison.patch(&desired, &actual), Some(patch));
/// assert_eq!(comparison.patch(&actual, &actual), None);
/// ```
///
/// | desired | actual |
/// |---|---|
/// | object | has these members, among others |
/// | null | is missing |
/// | list with merge keys (`containers`, `env`, `ports`, `ownerReferences`) | has an element for each of these, in any order, among others. An omitted key has its default, or any value |
/// | list with duplicate or missing keys, and any other list | has the same length, and each element corresponds to the desired one at its position |
/// | `finalizers` | has these, among others |
/// | quantity | has the same value: `1000m` is `1` |
/// | number | has the same value: `1.0` is `1` |
/// | anything else | is the same |
///
/// In built-in resource types, and in `metadata`, an empty list, map (such as labels) or string is the same as a missing one,
/// because the API server does not store it. An empty object is not: `emptyDir: {}` is a volume. Do not set a number to 0 or a
/// Boolean to false if the API server drops such a value (example: `hostNetwork`). Write-only fields such as `stringData` of a
/// Secret always differ.
///
/// Some optional strings are stored although they are empty, such as `storageClassName` of a `PersistentVolumeClaim` and
/// `holderIdentity` of a Lease. An empty one is not distinguished from a missing one.
///
/// An element of a list whose key changes is a new element, and the earlier one stays. Use [`exactly`](Self::exactly) for a list
/// whose elements are all yours, such as `spec.ports` of a Service. Otherwise another port number leaves two ports of one name,
/// which the API server rejects.
///
/// The fields that identify the object are not compared: `apiVersion`, `kind`, and the name and namespace in `metadata`.
///
/// The actual object must have all fields that may be desired. It need not be the whole object.
#[derive(Clone, Debug)]
pub struct Comparison {
    kind: Kind,
    rules: Vec<(&'static str, Rule)>,
}

/// Additional requirement at a path.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Absent,
    Exactly,
}

/// Format of a result.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// The changes, as a strategic merge patch.
    Strategic,
    /// The changes, as a merge patch.
    Merge,
    /// The actual value with the changes.
    Whole,
}

/// Rules for a value at its place.
struct Place<'a> {
    field: Option<Field>,
    form: Form,
    /// Rules for the value (with an empty path), and for those in it.
    rules: Vec<(&'a str, Rule)>,
    /// Members that are not compared.
    identity: &'static [&'static str],
    depth: usize,
}

impl Comparison {
    /// Returns the comparison of objects of this resource type.
    #[must_use]
    pub const fn of(kind: Kind) -> Self {
        Self {
            kind,
            rules: Vec::new(),
        }
    }

    /// Requires that the object or list at this path has no other members or elements than the desired ones. Members of its
    /// members are not affected: in `exactly("spec.ports")`, a port may have other fields. Not for the whole object or `metadata`,
    /// because the API server sets members of both.
    ///
    /// A path consists of member names, and names a field in all desired elements of a list: `spec.template.spec.containers.env`.
    #[must_use]
    pub fn exactly(mut self, path: &'static str) -> Self {
        self.rules.push((path, Rule::Exactly));
        self
    }

    /// Requires that the field at this [path](Self::exactly) is missing, even if it is desired. A null in the desired object
    /// has the same effect.
    #[must_use]
    pub fn absent(mut self, path: &'static str) -> Self {
        self.rules.push((path, Rule::Absent));
        self
    }

    /// Returns the patch after which `actual` contains `desired`, or `None` if it does already.
    ///
    /// The patch is a strategic merge patch for a built-in resource type, and a merge patch for a custom resource. It is based
    /// on this version of the object: send it with its resourceVersion, as [`Plan::apply`](crate::Plan::apply) does. A list
    /// without merge keys is replaced as a whole. So is a list with several elements of the same merge key, such as a TCP and a
    /// UDP port.
    ///
    /// A value of another type than the desired one is replaced. If `desired` is not an object, the result is `None`. Values
    /// below 128 levels are compared as a whole.
    #[must_use]
    pub fn patch(&self, desired: &Value, actual: &Value) -> Option<Value> {
        let form = if self.kind.is_built_in() {
            Form::Strategic
        } else {
            Form::Merge
        };
        self.patch_as(form, desired, actual)
    }

    /// Returns the [patch](Self::patch) as a merge patch.
    pub(crate) fn merge_patch(&self, desired: &Value, actual: &Value) -> Option<Value> {
        self.patch_as(Form::Merge, desired, actual)
    }

    fn patch_as(&self, form: Form, desired: &Value, actual: &Value) -> Option<Value> {
        let kind = &self.kind;
        let name = (kind.group, kind.version, kind.kind);
        let known = KINDS.iter().find(|(it, _)| *it == name);
        let root = Place {
            field: known.map(|(_, of)| Field::Object(of)),
            form,
            rules: self.rules.clone(),
            identity: &["apiVersion", "kind"],
            depth: 0,
        };
        let nothing = Map::new();
        let actual = actual.as_object().unwrap_or(&nothing);
        self.object(desired.as_object()?, actual, &root)
    }

    /// Returns the change of a value: null to remove it, `None` if nothing differs.
    fn value(&self, desired: &Value, actual: Option<&Value>, at: &Place<'_>) -> Option<Value> {
        let actual = actual.filter(|actual| !actual.is_null());
        let actual = actual.filter(|actual| !desired.is_null() || !self.is_nothing(actual, at));
        let Some(actual) = actual else {
            let is_met = desired.is_null() || self.is_nothing(desired, at);
            return (!is_met).then(|| at.wanted(desired));
        };
        let is_met = match (desired, actual) {
            _ if at.depth == DEPTH => desired == actual,
            (Value::Object(desired), Value::Object(actual)) => {
                return self.object(desired, actual, at);
            }
            (Value::Array(desired), Value::Array(actual)) => self.is_same_list(desired, actual, at),
            _ => is_same(desired, actual, at.field),
        };
        (!is_met).then(|| at.wanted(desired))
    }

    /// Whether the API server stores this value like a missing one.
    fn is_nothing(&self, value: &Value, at: &Place<'_>) -> bool {
        match (value, at.field) {
            (Value::Object(members), Some(Field::Map | Field::Quantities | Field::Objects(_))) => {
                members.values().all(Value::is_null)
            }
            (Value::Object(members), Some(Field::Object(of)))
                if ptr::eq(of, &raw const OBJECT_META) =>
            {
                self.object(members, &Map::new(), at).is_none()
            }
            (Value::Array(list), field) => {
                list.is_empty() && (field.is_some() || self.kind.is_built_in())
            }
            (Value::String(text), field) => {
                let is_entry = matches!(field, Some(Field::Entry));
                text.is_empty() && self.kind.is_built_in() && !is_entry
            }
            _ => false,
        }
    }

    fn object(
        &self,
        desired: &Map<String, Value>,
        actual: &Map<String, Value>,
        at: &Place<'_>,
    ) -> Option<Value> {
        let mut changes = Map::new();
        for (name, value) in desired {
            if !at.identity.contains(&name.as_str()) {
                self.member(name, value, actual.get(name), at, &mut changes);
            }
        }
        // Members that have rules and are not in the manifest.
        for (path, _) in &at.rules {
            let (name, rest) = path.split_once('.').unwrap_or((path, ""));
            let actual = actual.get(name).filter(|_| !desired.contains_key(name));
            let desired = match actual {
                Some(Value::Object(_)) => json!({}),
                Some(Value::Array(_)) if rest.is_empty() => json!([]),
                Some(scalar) if rest.is_empty() => scalar.clone(),
                _ => continue,
            };
            self.member(name, &desired, actual, at, &mut changes);
        }
        let is_union = at
            .field
            .is_some_and(|field| field.type_of_members().is_union);
        if at.is_exact() || (is_union && !changes.is_empty()) {
            let is_other = |name: &String| {
                !desired.contains_key(name) && !at.identity.contains(&name.as_str())
            };
            let others = actual.iter().filter(|(_, value)| !value.is_null());
            let others = others.filter(|(name, _)| is_other(name));
            changes.extend(others.map(|(name, _)| (name.clone(), Value::Null)));
        }
        if changes.is_empty() {
            return None;
        }
        if at.form != Form::Whole {
            return Some(changes.into());
        }
        let mut whole = actual.clone();
        whole.extend(changes);
        Some(without_nulls(&whole.into()))
    }

    /// Adds the change of a member to `changes`.
    fn member(
        &self,
        name: &str,
        desired: &Value,
        actual: Option<&Value>,
        at: &Place<'_>,
        changes: &mut Map<String, Value>,
    ) {
        let place = at.member(name);
        let is_absent = place.rules.contains(&("", Rule::Absent));
        let desired = if is_absent { &Value::Null } else { desired };
        let change = match (place.field, desired, actual) {
            (Some(Field::Keyed(keys, _)), Value::Array(desired), Some(Value::Array(actual)))
                if has_keys(keys, desired) =>
            {
                self.keyed((name, keys), (desired, actual), &place, changes)
            }
            (Some(Field::Keyed(..)), Value::Array(desired), Some(Value::Array(actual))) => {
                let element = place.element(Form::Whole);
                let list = || desired.iter().map(|it| element.wanted(it)).collect();
                let is_met = self.is_same_list(desired, actual, &place);
                (!is_met).then(|| replaced(list(), actual, &place))
            }
            (Some(Field::Set), Value::Array(desired), Some(Value::Array(actual))) => {
                set(name, (desired, actual), &place, changes)
            }
            _ => self.value(desired, actual, &place),
        };
        changes.extend(change.map(|change| (name.to_owned(), change)));
    }

    fn is_same_list(&self, desired: &[Value], actual: &[Value], at: &Place<'_>) -> bool {
        let element = at.element(Form::Whole);
        let mut pairs = desired.iter().zip(actual);
        desired.len() == actual.len()
            && pairs.all(|(desired, actual)| self.value(desired, Some(actual), &element).is_none())
    }

    /// Returns the change of a list whose elements have keys.
    fn keyed(
        &self,
        (name, keys): (&str, &[Key]),
        (desired, actual): (&[Value], &[Value]),
        at: &Place<'_>,
        changes: &mut Map<String, Value>,
    ) -> Option<Value> {
        let place_of = |desired| actual.iter().position(|it| is_one(keys, desired, it));
        let places: Vec<_> = desired.iter().map(place_of).collect();
        let pairs = || desired.iter().zip(places.iter().copied());
        let change = |desired: &Value, place: Option<usize>, form: Form| {
            let actual = place.map(|place| &actual[place]);
            self.value(desired, actual, &at.element(form))
        };
        let is_wanted = |place| places.contains(&Some(place));
        let has_others = at.is_exact() && !(0..actual.len()).all(is_wanted);
        let is_met = pairs().all(|(it, place)| change(it, place, Form::Whole).is_none());
        if is_met && !has_others {
            return None;
        }

        let (key, _) = keys[0];
        let new = pairs().filter(|(_, place)| place.is_none());
        let new: Vec<_> = new.map(|(it, _)| it).collect();
        let mut all = actual.iter().chain(new.iter().copied());
        let is_unique = all.all(|one| {
            let all = actual.iter().chain(new.iter().copied());
            all.filter(|it| it.get(key) == one.get(key)).count() == 1
        });
        if at.form == Form::Strategic && is_unique && !has_others {
            if !new.is_empty() && desired.len() > 1 {
                // Without it, new elements are inserted in front.
                let order = desired.iter().map(|it| json!({ key: it[key] })).collect();
                changes.insert(format!("$setElementOrder/{name}"), order);
            }
            let patches = pairs().filter_map(|(it, place)| {
                let mut patch = change(it, place, Form::Strategic)?;
                patch[key] = it[key].clone();
                Some(patch)
            });
            return Some(patches.collect());
        }
        let merged = |(it, place): (&Value, Option<usize>)| {
            let same = || place.map(|place| actual[place].clone());
            change(it, place, Form::Whole).or_else(same)
        };
        let list: Vec<Value> = if at.is_exact() {
            pairs().filter_map(merged).collect()
        } else {
            let kept = actual.iter().enumerate().map(|(place, it)| {
                let pair = pairs().find(|(_, of)| *of == Some(place));
                pair.and_then(merged).unwrap_or_else(|| it.clone())
            });
            let element = at.element(Form::Whole);
            kept.chain(new.into_iter().map(|it| element.wanted(it)))
                .collect()
        };
        Some(replaced(list, actual, at))
    }
}

impl Place<'_> {
    fn is_exact(&self) -> bool {
        self.rules.contains(&("", Rule::Exactly))
    }

    fn member(&self, name: &str) -> Self {
        let is_metadata = self.depth == 0 && name == "metadata";
        let field = self.field.and_then(|field| field.member(name));
        let is_replaced = matches!(field, Some(Field::Replaced(_)));
        let below = self.rules.iter().filter_map(|(path, rule)| {
            let (first, rest) = path.split_once('.').unwrap_or((path, ""));
            (first == name).then_some((rest, *rule))
        });
        Self {
            field: if is_metadata {
                Some(Field::Object(&OBJECT_META))
            } else {
                field
            },
            form: if is_replaced { Form::Whole } else { self.form },
            rules: below.collect(),
            identity: if is_metadata {
                &["name", "namespace"]
            } else {
                &[]
            },
            depth: self.depth + 1,
        }
    }

    /// Returns a desired value without the members that are null or must be absent.
    fn wanted(&self, desired: &Value) -> Value {
        match desired {
            _ if self.rules.is_empty() => without_nulls(desired),
            Value::Object(members) => {
                let places = members.iter().map(|it| (it, self.member(it.0)));
                let wanted = places.filter(|((_, value), place)| {
                    !value.is_null() && !place.rules.contains(&("", Rule::Absent))
                });
                wanted
                    .map(|((name, value), place)| (name.clone(), place.wanted(value)))
                    .collect::<Map<_, _>>()
                    .into()
            }
            Value::Array(list) => {
                let element = self.element(Form::Whole);
                list.iter().map(|it| element.wanted(it)).collect()
            }
            other => other.clone(),
        }
    }

    fn element(&self, form: Form) -> Self {
        let of = self.field.map_or(&PLAIN, Field::type_of_members);
        let below = self.rules.iter().filter(|(path, _)| !path.is_empty());
        Self {
            field: Some(Field::Object(of)),
            form,
            rules: below.copied().collect(),
            identity: &[],
            depth: self.depth + 1,
        }
    }
}

/// Returns a list that replaces `actual`.
fn replaced(mut list: Vec<Value>, actual: &[Value], at: &Place<'_>) -> Value {
    if at.form == Form::Strategic && !actual.is_empty() {
        list.insert(0, json!({ "$patch": "replace" }));
    }
    list.into()
}

/// Returns the change of a list without order.
fn set(
    name: &str,
    (desired, actual): (&[Value], &[Value]),
    at: &Place<'_>,
    changes: &mut Map<String, Value>,
) -> Option<Value> {
    let less = |all: &[Value], those: &[Value]| -> Vec<Value> {
        let rest = all.iter().filter(|it| !those.contains(it));
        rest.cloned().collect()
    };
    let missing = less(desired, actual);
    let others = if at.is_exact() {
        less(actual, desired)
    } else {
        Vec::new()
    };
    if at.form == Form::Strategic {
        if !others.is_empty() {
            changes.insert(format!("$deleteFromPrimitiveList/{name}"), others.into());
        }
        return (!missing.is_empty()).then(|| missing.into());
    }
    let is_met = missing.is_empty() && others.is_empty();
    let kept = less(actual, &others).into_iter();
    (!is_met).then(|| kept.chain(missing).collect())
}

/// Whether these are objects with different keys.
fn has_keys(keys: &[Key], elements: &[Value]) -> bool {
    let is_other = |(at, it): (usize, &Value)| {
        let has_key = it.get(keys[0].0).is_some_and(|key| !key.is_null());
        has_key && !elements[..at].iter().any(|other| is_one(keys, it, other))
    };
    elements.iter().enumerate().all(is_other)
}

/// Whether an element has the keys of the desired one.
fn is_one(keys: &[Key], desired: &Value, actual: &Value) -> bool {
    keys.iter().all(|(key, default)| {
        let of = [desired, actual].map(|it| it.get(*key).filter(|it| !it.is_null()));
        match of {
            [Some(desired), Some(actual)] => is_same(desired, actual, None),
            [None, None] => true,
            [None, Some(_)] if default.is_empty() => true,
            [Some(one), None] | [None, Some(one)] => one == *default,
        }
    })
}

fn is_same(desired: &Value, actual: &Value, field: Option<Field>) -> bool {
    if matches!(field, Some(Field::Quantity)) {
        let value = |quantity: &Value| match quantity {
            Value::String(text) => quantity::parse(text),
            Value::Number(number) => quantity::parse(&number.to_string()),
            _ => None,
        };
        if let Some((desired, actual)) = value(desired).zip(value(actual)) {
            return desired == actual;
        }
    }
    // A number with a fraction of zero becomes an integer.
    let has_fraction = desired.is_f64() || actual.is_f64();
    let numbers = desired.as_f64().zip(actual.as_f64());
    let numbers = numbers.filter(|_| has_fraction);
    numbers.map_or_else(
        || desired == actual,
        |(one, other)| one.total_cmp(&other).is_eq(),
    )
}

/// Returns a value without the members that are null.
pub(crate) fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            let members = members.map(|(name, value)| (name.clone(), without_nulls(value)));
            Value::Object(members.collect())
        }
        Value::Array(list) => list.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}
