//! Generic cached forms: of a custom resource ([`Custom`]), and of an object that it owns or reads ([`Dependent`]).
//!
//! They keep a whole spec and a whole status. For a type with many thousands of objects, implement [`Cached`] instead. It keeps
//! less, and reads each object in one pass instead of two.

use std::{borrow::Cow, fmt::Debug, hash::Hash, hash::Hasher};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error as _},
};
use serde_json::{Value, value::RawValue};

use crate::api::{
    kind::Kind,
    object::{Cached, Field, Finalizable, Meta, Metadata, Primary},
    reference::References,
    reported::Reported,
};

/// Spec of a reconciled custom resource, kept by [`Custom`].
pub trait Spec: Clone + Debug + PartialEq + Send + Sync + DeserializeOwned + 'static {
    /// Resource type of the custom resource.
    const KIND: Kind;
    /// Type of the status, usually [`Status`](crate::Status). A status with an invalid field is replaced by the default.
    type Status: Debug + Default + PartialEq + Send + Sync + Serialize + DeserializeOwned + Reported;
    /// See [`Cached::references`].
    fn references(&self, to: &mut References<'_>) {
        _ = to;
    }
}

/// A custom resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Custom<S: Spec> {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.generation`.
    pub generation: i64,
    /// Whether the object is terminating.
    pub deleting: bool,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// The spec, or the error in it: a stored object may be older than the schema.
    pub spec: Result<S, String>,
    /// The last stored status.
    pub status: S::Status,
}

/// The JSON of a [`Custom`].
#[derive(Deserialize)]
#[serde(bound = "")]
pub struct CustomWire<S: Spec> {
    metadata: Metadata,
    #[serde(default)]
    spec: Field<S>,
    #[serde(default)]
    status: Field<S::Status>,
}

impl<S: Spec> Cached for Custom<S> {
    type Wire = CustomWire<S>;
    const KIND: Kind = S::KIND;

    fn decode(wire: CustomWire<S>) -> (Meta, Self) {
        let mut metadata = wire.metadata;
        let custom = Self {
            uid: std::mem::take(&mut metadata.uid),
            generation: std::mem::take(&mut metadata.generation).or_default(),
            deleting: metadata.deleting,
            finalizers: metadata.take_finalizers(),
            spec: wire.spec.into_result("spec"),
            status: wire.status.or_default(),
        };
        (metadata.into_meta(), custom)
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn references(&self, to: &mut References<'_>) {
        if let Ok(spec) = &self.spec {
            spec.references(to);
        }
    }

    /// The generation is not enough, because an etcd restore sets it back.
    fn content(&self, state: &mut impl Hasher) {
        // A spec need not implement `Hash`.
        (self.generation, format!("{:?}", self.spec)).hash(state);
    }
}

impl<S: Spec> Primary for Custom<S> {
    type Status = S::Status;

    fn generation(&self) -> i64 {
        self.generation
    }

    fn is_deleting(&self) -> bool {
        self.deleting
    }

    fn status(&self) -> Cow<'_, S::Status> {
        Cow::Borrowed(&self.status)
    }

    fn is_observed(&self) -> bool {
        self.status.common().observed_generation == Some(self.generation)
    }

    fn with_condition(
        &self,
        type_: &str,
        verdict: (bool, &str, String),
        now: Timestamp,
    ) -> Option<S::Status> {
        Some(self.status.with(self.generation, type_, verdict, now))
    }

    fn condition(&self, type_: &str) -> Option<Cow<'_, Condition>> {
        let mut conditions = self.status.common().conditions.iter();
        conditions.find(|it| it.type_ == type_).map(Cow::Borrowed)
    }

    fn noted(status: &mut S::Status) -> Option<(&mut Vec<Condition>, &mut Option<String>)> {
        let common = status.common_mut();
        Some((
            &mut common.conditions,
            &mut common.last_handled_reconcile_at,
        ))
    }

    fn says(status: &S::Status, state: &mut impl Hasher) {
        let mut value = serde_json::to_value(status).unwrap_or_default();
        forget_times(&mut value);
        value.to_string().hash(state);
    }
}

impl<S: Spec> Finalizable for Custom<S> {
    fn finalizers(&self) -> &[String] {
        &self.finalizers
    }
}

/// Removes the time of each condition.
fn forget_times(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("lastTransitionTime");
            fields.values_mut().for_each(forget_times);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_times),
        _ => {}
    }
}

/// Kept fields of a [`Dependent`], without `metadata`. If a field is missing or has another shape, all fields have their defaults:
/// mark a field that may be missing with `#[serde(default)]`.
pub trait Fields:
    Clone + Debug + Default + PartialEq + Hash + Send + Sync + DeserializeOwned + 'static
{
    /// The resource type.
    const KIND: Kind;
    /// See [`Cached::content`]. The default hashes all fields. Leave out kept fields that change without an edit, such as
    /// counts in a status.
    fn content(&self, state: &mut impl Hasher) {
        self.hash(state);
    }
    /// See [`Cached::is_rollout_update`].
    #[must_use]
    fn is_rollout_update(old: &Self, new: &Self) -> bool {
        _ = (old, new);
        false
    }
}

/// An object that a custom resource owns or reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependent<T> {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// Kept fields.
    pub fields: T,
}

/// The JSON of a [`Dependent`].
pub struct DependentWire<T> {
    metadata: Metadata,
    fields: T,
}

impl<'de, T: Fields> Deserialize<'de> for DependentWire<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Wire {
            metadata: Metadata,
        }
        let text = <&RawValue>::deserialize(deserializer)?.get();
        let Wire { metadata } = serde_json::from_str(text).map_err(D::Error::custom)?;
        let fields = Field::read(text).or_default();
        Ok(Self { metadata, fields })
    }
}

impl<T: Fields> Cached for Dependent<T> {
    type Wire = DependentWire<T>;
    const KIND: Kind = T::KIND;

    fn decode(wire: DependentWire<T>) -> (Meta, Self) {
        let DependentWire {
            mut metadata,
            fields,
        } = wire;
        let dependent = Self {
            uid: std::mem::take(&mut metadata.uid),
            fields,
        };
        (metadata.into_meta(), dependent)
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn content(&self, state: &mut impl Hasher) {
        self.fields.content(state);
    }

    fn is_rollout_update(old: &Self, new: &Self) -> bool {
        old.uid == new.uid && T::is_rollout_update(&old.fields, &new.fields)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::{collections::BTreeMap, hash::DefaultHasher};

    use serde_json::json;

    use super::*;
    use crate::api::{
        key::Key,
        object::Object,
        reported::{Status, condition},
    };

    #[derive(Clone, Debug, PartialEq, Deserialize)]
    struct Wish {
        of: String,
    }

    impl Spec for Wish {
        const KIND: Kind = Kind::custom("example.com", "v1", "Wish", "wishes");
        type Status = Status;
        fn references(&self, to: &mut References<'_>) {
            to.sibling::<Dependent<Data>>(&self.of);
        }
    }

    #[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
    #[serde(default)]
    struct Data {
        data: BTreeMap<String, String>,
    }

    impl Fields for Data {
        const KIND: Kind = Kind::of::<k8s_openapi::api::core::v1::ConfigMap>();
    }

    fn object<V: Cached>(value: &Value) -> V {
        serde_json::from_str::<Object<V>>(&value.to_string())
            .unwrap()
            .view
    }

    #[test]
    fn any_stored_object_can_be_decoded() {
        let metadata = json!({ "name": "w", "namespace": "n", "uid": "u", "resourceVersion": "1",
            "generation": 2, "deletionTimestamp": "2020-01-01T00:00:00Z", "finalizers": ["a/b"] });
        let wish: Custom<Wish> = object(&json!({ "metadata": metadata, "spec": { "of": "s" },
            "status": { "observedGeneration": 2 } }));
        assert!(wish.is_observed() && wish.is_deleting());
        assert_eq!(wish.finalizers(), ["a/b"]);
        let references = References::of(&Key::new("n", "w"), &wish);
        assert_eq!(references, [(&Data::KIND, Key::new("n", "s"))]);
        for spec in [json!(null), json!(5), json!({ "of": [] })] {
            let odd: Custom<Wish> =
                object(&json!({ "metadata": metadata, "spec": spec, "status": 5 }));
            assert!(odd.spec.unwrap_err().starts_with("spec"));
            assert_eq!(odd.status, Status::default());
        }
        let none: Custom<Wish> = object(&json!({ "metadata": metadata }));
        assert!(none.spec.is_err());
    }

    /// An etcd restore sets generations back, so [`verify_current`](crate::Writer::verify_current) compares the desired state.
    #[test]
    fn another_spec_of_the_same_generation_is_another_content() {
        let content = |of: &str, generation: i64| {
            let metadata = json!({ "name": "w", "namespace": "n", "uid": "u", "resourceVersion": "1",
                "generation": generation });
            let wish: Custom<Wish> = object(&json!({ "metadata": metadata, "spec": { "of": of } }));
            let mut hasher = DefaultHasher::new();
            wish.content(&mut hasher);
            hasher.finish()
        };
        assert_eq!(content("a", 2), content("a", 2));
        assert_ne!(content("a", 2), content("b", 2));
        assert_ne!(content("a", 2), content("a", 3));
    }

    /// A panic while a field is parsed affects only that field.
    #[test]
    fn a_field_that_panics_is_wrong() {
        #[derive(Debug)]
        struct Panics;
        impl<'de> Deserialize<'de> for Panics {
            fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
                unreachable!("on purpose")
            }
        }
        let read = serde_json::from_str::<Vec<Field<Panics>>>("[5]").unwrap();
        let read = read.into_iter().map(|field| field.into_result("spec"));
        let wrong: Vec<_> = read.map(Result::unwrap_err).collect();
        assert_eq!(wrong, ["spec: reading it panicked"]);
    }

    #[test]
    fn a_dependent_keeps_its_fields() {
        let map = |data: Value| -> Dependent<Data> {
            let metadata =
                json!({ "name": "m", "namespace": "n", "uid": "m", "resourceVersion": "1" });
            object(&json!({ "metadata": metadata, "data": data }))
        };
        assert_eq!(map(json!({ "a": "b" })).fields.data["a"], "b");
        assert_eq!(map(json!([5])).fields, Data::default());
    }

    #[test]
    fn transition_times_are_kept_and_not_part_of_the_status_hash() {
        let now = Timestamp::UNIX_EPOCH;
        let later = now + std::time::Duration::from_secs(5);
        let verdict = |status| (status, "Reason", String::new());
        let old = [condition(&[], 1, "Ready", verdict(true), now)];
        let kept = condition(&old, 2, "Ready", verdict(true), later);
        assert_eq!(kept.last_transition_time.0, now);
        let other = condition(&old, 2, "Ready", verdict(false), later);
        assert_eq!(other.last_transition_time.0, later);
        let says = |condition| {
            let said = Status {
                observed_generation: Some(1),
                conditions: vec![condition],
                ..Status::default()
            };
            let mut state = DefaultHasher::new();
            Custom::<Wish>::says(&said, &mut state);
            state.finish()
        };
        let again = condition(&[], 2, "Ready", verdict(true), later);
        assert_eq!(says(again), says(kept.clone()));
        assert_ne!(says(other), says(kept));
    }
}
