//! Cached forms of objects: only the fields that a controller reads.
//!
//! All other fields (managedFields, unknown annotations, …) are skipped while the JSON is parsed, without an allocation. No
//! user data can make an object undecodable ([`Field`]), so one malformed object in a list does not block the others.

use std::{
    borrow::Cow,
    cell::RefCell,
    collections::BTreeMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    panic::catch_unwind,
};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
    jiff::Timestamp,
};
use kube::core::DynamicResourceScope;
use opentelemetry::trace::SpanContext;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error as _, IgnoredAny},
};
use serde_json::value::RawValue;

use crate::api::{
    control::{self, Annotation},
    failure::brief,
    key::Key,
    kind::Kind,
    panic::{Panicked, catch},
    reference::{ObjectRef, OwnerReference, Reference, References},
};

/// Returns the resource type of a cached form.
pub(crate) fn kind_of<V: Cached>() -> &'static Kind {
    const { &V::KIND }
}

impl<'a> References<'a> {
    /// Returns the references of an object.
    pub(crate) fn of<V: Cached>(key: &'a Key, view: &V) -> Vec<Reference> {
        let mut to = References::none(key);
        view.references(&mut to);
        to.into_all()
    }

    /// Adds the object `name` of another namespaced resource type, in the same namespace.
    ///
    /// # Panics
    /// If the object is cluster-scoped: it has no namespace. Use [`object`](Self::object).
    pub fn sibling<V: Cached>(&mut self, name: &str) {
        const { assert!(!V::KIND.is_cluster_scoped(), "use `cluster` for this type") };
        let (from, kind) = (self.key(), V::KIND.kind);
        assert!(
            !from.is_cluster_scoped(),
            "{from:?} is cluster-scoped, and has no namespace with a sibling {kind} {name:?}: use `object`"
        );
        self.add(kind_of::<V>(), from.sibling(name));
    }

    /// Adds the object `name` of a cluster-scoped resource type.
    pub fn cluster<V: Cached>(&mut self, name: &str) {
        const { assert!(V::KIND.is_cluster_scoped(), "use `sibling` for this type") };
        self.add(kind_of::<V>(), Key::cluster(name));
    }

    /// Adds an object of another namespaced resource type, in any namespace. While the object is in another namespace and does not
    /// [grant](crate::View::granted) the access, its changes do not enqueue a namespaced object.
    ///
    /// A reference of a cluster-scoped object needs a namespace: without one, nothing is added.
    pub fn object<V: Cached>(&mut self, to: &ObjectRef) {
        const { assert!(!V::KIND.is_cluster_scoped(), "use `cluster` for this type") };
        if let Some(key) = to.key(self.key()) {
            self.add(kind_of::<V>(), key);
        }
    }
}

/// Cached form of a resource type: the data that a [`Store`](crate::Store) keeps, and its decoding.
pub trait Cached: Clone + Debug + PartialEq + Send + Sync + Sized + 'static {
    /// Shape of the JSON: [`Metadata`], and each kept field as a [`Field`]. An object that does not have this shape, or panics
    /// while it is parsed, ends the watch, which is retried. An error within a [`Field`] affects only that field.
    type Wire: for<'de> Deserialize<'de>;
    /// The resource type.
    const KIND: Kind;
    /// Whether the API server sends metadata only (`PartialObjectMetadata`).
    const METADATA_ONLY: bool = false;
    /// Converts the parsed JSON into the cached form.
    fn decode(wire: Self::Wire) -> (Meta, Self);
    /// Returns `metadata.uid`. It distinguishes the object from an earlier one of the same name.
    fn uid(&self) -> &str;
    /// Adds the objects that a reconciled object requires or reads. A change of one enqueues the reconciled object, if its
    /// controller [owns](crate::ControllerBuilder::owns) or [watches](crate::ControllerBuilder::watches) the resource type. An
    /// object that the reconciled object controls needs no reference, once it exists. Default: none.
    fn references(&self, to: &mut References<'_>) {
        _ = to;
    }
    /// Hashes the fields that other clients change on purpose. Leave out fields that change without an edit, such as counts in
    /// a status.
    ///
    /// While the hash stays the same, a patch without effect is not sent again. For the reconciled type,
    /// [`verify_current`](crate::Writer::verify_current) also compares it, in addition to the UID, generation and deletion.
    fn content(&self, state: &mut impl Hasher);
    /// Returns whether `new` differs from `old` only by the progress of an unfinished rollout. Such changes enqueue at a slower
    /// pace.
    #[must_use]
    fn is_rollout_update(old: &Self, new: &Self) -> bool {
        _ = (old, new);
        false
    }
}

/// A reconciled resource type, with a generation and a status that the controller reports.
pub trait Primary: Cached {
    /// The status subresource.
    type Status: Clone + Serialize + PartialEq + Send + Sync;
    /// Returns `metadata.generation`, which grows with each change of the spec.
    fn generation(&self) -> i64;
    /// Returns whether the object is terminating.
    fn is_deleting(&self) -> bool;
    /// Returns the last stored status: borrowed, or made from a smaller cached form.
    fn status(&self) -> Cow<'_, Self::Status>;
    /// Returns whether the status is of the current generation.
    fn is_observed(&self) -> bool;
    /// Returns the status with this condition: its type, and whether it is true, its reason and its message. `None`, the
    /// default, if the status has no conditions.
    fn with_condition(
        &self,
        type_: &str,
        verdict: (bool, &str, String),
        now: Timestamp,
    ) -> Option<Self::Status> {
        _ = (type_, verdict, now);
        None
    }
    /// Returns this condition of the last stored status. Default: none.
    fn condition(&self, type_: &str) -> Option<Cow<'_, Condition>> {
        _ = type_;
        None
    }
    /// Returns the fields of a status that the runtime itself writes: the conditions, for the condition Paused, and
    /// `lastHandledReconcileAt`. `None`, the default, if the status has no such fields. Then a user sees neither.
    fn noted(status: &mut Self::Status) -> Option<(&mut Vec<Condition>, &mut Option<String>)> {
        _ = status;
        None
    }
    /// Hashes the content of a status, without its times.
    fn says(status: &Self::Status, state: &mut impl Hasher);
    /// Returns the trace that changed the object, from its annotation `<application>/traceparent`.
    fn trace(&self) -> Option<&SpanContext> {
        None
    }
}

/// A resource type with a [`Finalizer`](crate::Finalizer).
pub trait Finalizable: Primary {
    /// Returns all of `metadata.finalizers`, from [`Metadata::take_finalizers`]. A finalizer that is missing here is removed by
    /// the next change.
    fn finalizers(&self) -> &[String];
}

/// Hashes the UID and [`Cached::content`].
pub(crate) struct Content<'a, V>(pub &'a V);

impl<V: Cached> Hash for Content<'_, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.uid().hash(state);
        self.0.content(state);
    }
}

/// Returns a fingerprint of the desired state, without the status and most metadata. The generation is not enough, because an
/// etcd restore sets it back.
pub(crate) fn asks_for<P: Primary>(object: &P) -> impl PartialEq + use<P> {
    let mut content = DefaultHasher::new();
    Content(object).hash(&mut content);
    (object.generation(), object.is_deleting(), content.finish())
}

/// Hashes [`Primary::says`].
pub(crate) struct Says<'a, P: Primary>(pub &'a P::Status);

impl<P: Primary> Hash for Says<'_, P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        P::says(self.0, state);
    }
}

/// A decoded object: its cached form, and its key and version for the store.
#[derive(Clone, Debug)]
pub struct Object<V> {
    // kube's client reads the resourceVersion from here. The other fields stay empty.
    meta: ObjectMeta,
    /// Its key.
    pub key: Key,
    /// `metadata.resourceVersion` as a number; 0 if it is not a number. Versions are comparable within a resource type
    /// (KEP-5504) on every supported API server.
    pub version: u64,
    /// Controller reference.
    pub owner: Option<OwnerReference>,
    /// Annotations for the runtime, of any group.
    pub(crate) control: Vec<Annotation>,
    /// Labels for the runtime, of any group.
    pub(crate) labels: Vec<Annotation>,
    /// Cached form.
    pub view: V,
}

impl<V> Object<V> {
    fn new(meta: Meta, view: V) -> Self {
        let (key, version) = meta.key_and_version();
        Self {
            key,
            version,
            owner: meta.owner,
            control: meta.control,
            labels: meta.labels,
            meta: ObjectMeta {
                resource_version: Some(meta.resource_version),
                ..ObjectMeta::default()
            },
            view,
        }
    }
}

impl<'de, V: Cached> Deserialize<'de> for Object<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The response to a write. An object that a watch would not deliver must not enter a store this way.
        let Incoming(object) = Incoming::deserialize(deserializer)?;
        object.map_err(|(_, panicked)| D::Error::custom(panicked))
    }
}

/// An object from a watch, or the identity of an object whose type panicked.
#[derive(Clone, Debug)]
pub(crate) struct Incoming<V>(pub Result<Object<V>, (Meta, Panicked)>);

impl<V: Cached> Incoming<V> {
    /// `metadata.resourceVersion`.
    pub(crate) fn resource_version(&self) -> &str {
        match &self.0 {
            Ok(object) => object.meta.resource_version.as_deref().unwrap_or_default(),
            Err((meta, _)) => &meta.resource_version,
        }
    }

    pub(crate) fn key_and_version(&self) -> (Key, u64) {
        match &self.0 {
            Ok(object) => (object.key.clone(), object.version),
            Err((meta, _)) => meta.key_and_version(),
        }
    }
}

impl<'de, V: Cached> Deserialize<'de> for Incoming<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // After a panic here, the rest of the input is unreadable: the panic ends the watch, or the page of a list.
        let read = || V::Wire::deserialize(deserializer);
        let wire = catch(&V::KIND, "Deserialize", read).map_err(D::Error::custom)??;
        let decoded = catch(&V::KIND, "Cached::decode", || V::decode(wire));
        let checked = decoded.and_then(|(meta, view)| {
            let object = Object::new(meta, view);
            // The store calls this at each change, under its lock.
            let refer = || drop(References::of(&object.key, &object.view));
            catch(&V::KIND, "Cached::references", refer).map(|()| object)
        });
        let which = |panicked| (LAST_READ.with_borrow(Meta::clone), panicked);
        Ok(Self(checked.map_err(which)))
    }
}

thread_local! {
    /// Parts of the last [`Metadata`] read. A panic loses the value itself.
    static LAST_READ: RefCell<Meta> = RefCell::default();
}

/// Deserializes a string, and copies it into [`LAST_READ`].
fn note<'de, const FIELD: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    LAST_READ.with_borrow_mut(|meta| {
        let field = [
            &mut meta.name,
            &mut meta.namespace,
            &mut meta.resource_version,
        ]
        .into_iter()
        .nth(FIELD);
        if let Some(field) = field {
            text.clone_into(field);
        }
    });
    Ok(text)
}

impl<V: Cached> kube::Resource for Object<V> {
    type DynamicType = ();
    type Scope = DynamicResourceScope;

    fn group((): &()) -> Cow<'_, str> {
        V::KIND.group.into()
    }
    fn version((): &()) -> Cow<'_, str> {
        V::KIND.version.into()
    }
    fn kind((): &()) -> Cow<'_, str> {
        V::KIND.kind.into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        V::KIND.plural.into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

/// A field of any shape and depth: its value, or the error in it.
///
/// Its text is skipped first, which has no depth limit, and parsed separately. So an error affects only this field. This
/// requires the input to be text. In a watch it is, because the API server sends the type of an event before its object.
///
/// A missing field is read only where its value is needed: most objects lack most of their optional fields.
pub struct Field<T>(Option<Result<T, Wrong>>);

/// Error in a field.
#[derive(Debug)]
struct Wrong {
    /// The member of the field that caused the error, if any.
    member: Option<String>,
    words: String,
}

impl<T: DeserializeOwned> Field<T> {
    pub(crate) fn read(text: &str) -> Self {
        let Ok(read) = catch_unwind(|| serde_json::from_str(text)) else {
            let words = "reading it panicked".to_owned();
            return Self(Some(Err(Wrong {
                member: None,
                words,
            })));
        };
        let read = read.map_err(|error| {
            let words = error.to_string();
            // The position within the text is of no use to a user.
            let place = words.rfind(" at line ").unwrap_or(words.len());
            Wrong {
                member: member_at(text, &error).map(|member| brief(&member)),
                // The message quotes the value, which may be long.
                words: brief(&words[..place]),
            }
        });
        Self(Some(read))
    }
}

/// Returns the member of this JSON map whose value caused the error.
fn member_at(text: &str, error: &serde_json::Error) -> Option<String> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let lines = text
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1));
    // Within the value, or just behind it.
    let at = lines.map(str::len).sum::<usize>() + error.column();
    let mut members = members.into_iter();
    let found = members.find(|(_, value)| {
        let from = value.get().as_ptr().addr() - text.as_ptr().addr();
        (from..=from + value.get().len()).contains(&at)
    });
    found.map(|(member, _)| member)
}

impl<T: DeserializeOwned> Field<T> {
    /// Returns the value. A missing field is null.
    ///
    /// # Errors
    /// A message for the user about the invalid field or member. `name` is the user's name for the field.
    pub fn into_result(self, name: &str) -> Result<T, String> {
        let Some(read) = self.0 else {
            return Self::read("null").into_result(name);
        };
        read.map_err(|Wrong { member, words }| {
            let member = member.map(|member| format!(".{member}"));
            format!("{name}{}: {words}", member.unwrap_or_default())
        })
    }
}

impl<T: Default> Field<T> {
    /// Returns the value, or the default if it is missing or invalid.
    pub fn or_default(self) -> T {
        self.0.and_then(Result::ok).unwrap_or_default()
    }
}

/// The field is missing.
impl<T> Default for Field<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|text| Self::read(text.get()))
    }
}

/// `metadata.annotations` or `metadata.labels`: the kept ones (`T`), and those for the runtime.
struct Pairs<T> {
    kept: Field<T>,
    control: Vec<Annotation>,
}

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self {
            kept: Field::default(),
            control: Vec::new(),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?.get();
        Ok(Self {
            kept: Field::read(text),
            control: control::find(text),
        })
    }
}

/// Key, version, controller reference, and annotations and labels for the runtime of an object.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    name: String,
    namespace: String,
    resource_version: String,
    owner: Option<OwnerReference>,
    control: Vec<Annotation>,
    labels: Vec<Annotation>,
}

impl Meta {
    fn key_and_version(&self) -> (Key, u64) {
        let key = Key::new(&self.namespace, &self.name);
        (key, self.resource_version.parse().unwrap_or(0))
    }
}

/// Indexes of the fields that `note` copies.
const NAME: usize = 0;
const NAMESPACE: usize = 1;
const RESOURCE_VERSION: usize = 2;

/// The parts of `metadata` that are read, with the kept labels (`L`) and annotations (`A`). Only the API server sets the parts
/// that are not a [`Field`].
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(bound = "L: DeserializeOwned, A: DeserializeOwned")]
pub struct Metadata<L = IgnoredAny, A = IgnoredAny> {
    /// `metadata.name`.
    #[serde(deserialize_with = "note::<NAME, _>")]
    pub name: String,
    /// `metadata.namespace`. Empty for a cluster-scoped object.
    #[serde(default, deserialize_with = "note::<NAMESPACE, _>")]
    pub namespace: String,
    #[serde(deserialize_with = "note::<RESOURCE_VERSION, _>")]
    resource_version: String,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.generation`.
    #[serde(default)]
    pub generation: Field<i64>,
    /// Whether `metadata.deletionTimestamp` is set.
    #[serde(default, rename = "deletionTimestamp", deserialize_with = "is_there")]
    pub deleting: bool,
    #[serde(default)]
    labels: Pairs<L>,
    #[serde(default)]
    annotations: Pairs<A>,
    /// `metadata.ownerReferences`.
    #[serde(default)]
    pub owner_references: Field<Vec<Field<OwnerReference>>>,
    /// `metadata.finalizers`.
    #[serde(default)]
    pub finalizers: Field<Vec<Field<String>>>,
}

impl<L, A> Metadata<L, A> {
    /// Returns the key, the version, the controller reference, and the annotations and labels for the runtime.
    #[must_use]
    pub fn into_meta(self) -> Meta {
        let owners = self.owner_references.or_default().into_iter();
        let mut owners = owners.filter_map(|owner| owner.0?.ok());
        Meta {
            name: self.name,
            namespace: self.namespace,
            resource_version: self.resource_version,
            owner: owners.find(|owner| owner.controller),
            control: self.annotations.control,
            labels: self.labels.control,
        }
    }

    /// Removes and returns the kept labels, or the default if they are invalid.
    pub fn take_labels(&mut self) -> L
    where
        L: Default + DeserializeOwned,
    {
        std::mem::take(&mut self.labels.kept).or_default()
    }

    /// Removes and returns the kept annotations, or the default if they are invalid.
    pub fn take_annotations(&mut self) -> A
    where
        A: Default + DeserializeOwned,
    {
        std::mem::take(&mut self.annotations.kept).or_default()
    }

    /// Removes and returns the finalizers.
    pub fn take_finalizers(&mut self) -> Vec<String> {
        let finalizers = std::mem::take(&mut self.finalizers).or_default();
        finalizers.into_iter().map(Field::or_default).collect()
    }

    /// Returns the controller reference, to an owner of any type.
    #[must_use]
    pub fn owner(&self) -> Option<&OwnerReference> {
        let owners = self.owner_references.0.as_ref()?.as_ref().ok()?.iter();
        let mut owners = owners.filter_map(|owner| owner.0.as_ref()?.as_ref().ok());
        owners.find(|owner| owner.controller)
    }
}

fn is_there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_some())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "whether it can be read is what counts")]
    struct Spec {
        name: String,
        count: Option<i32>,
        port: Option<Port>,
    }

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "whether it can be read is what counts")]
    struct Port {
        number: u16,
    }

    /// The message names the member to correct, at any position and in any notation.
    #[test]
    fn decode_errors_name_the_invalid_member() {
        for (text, said) in [
            ("5", "spec: invalid type: integer `5`, expected struct Spec"),
            ("{}", "spec: missing field `name`"),
            (
                r#"{"name":"a","count":"two","port":null}"#,
                r#"spec.count: invalid type: string "two", expected i32"#,
            ),
            (
                "{\n  \"name\": \"a\",\n  \"count\": [1],\n  \"port\": null\n}",
                "spec.count: invalid type: sequence, expected i32",
            ),
            (
                r#"{"count":1,"na\u006de":5}"#,
                "spec.name: invalid type: integer `5`, expected a string",
            ),
            (
                r#"{"name":"a","port":{"number":65536},"count":1}"#,
                "spec.port: invalid value: integer `65536`, expected u16",
            ),
            (
                r#"{"name":"a","port":{}}"#,
                "spec.port: missing field `number`",
            ),
        ] {
            let read = Field::<Spec>::read(text).into_result("spec");
            assert_eq!(read.unwrap_err(), said, "{text}");
        }
    }

    #[test]
    fn a_missing_field_is_null() {
        let missing = Field::<Spec>::default().into_result("spec").unwrap_err();
        assert_eq!(missing, "spec: invalid type: null, expected struct Spec");
        assert_eq!(Field::<Option<u8>>::default().into_result("a"), Ok(None));
        assert_eq!(Field::<u8>::default().or_default(), 0);
    }
}
