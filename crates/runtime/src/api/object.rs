//! What is kept of an object: the fields that a controller reads, and nothing else.
//!
//! Everything else (managedFields, foreign annotations, …) is skipped while the JSON is being read, without ever being
//! allocated. Nothing that a user stored can make an object undecodable ([`Field`]), so that one odd object in a list does
//! not hold up the others.

use std::{
    borrow::Cow,
    cell::RefCell,
    collections::BTreeMap,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    panic::catch_unwind,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::NamespaceResourceScope;
use opentelemetry::trace::SpanContext;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error as _, IgnoredAny},
};
use serde_json::value::RawValue;

use crate::api::{
    failure::brief,
    key::Key,
    kind::Kind,
    panic::{Panicked, catch},
};

/// The cached form of a kind of namespaced objects: what a [`Store`](crate::Store) keeps of each, and how it is decoded.
pub trait Cached: Clone + Debug + PartialEq + Send + Sync + Sized + 'static {
    /// The JSON's own shape: the fields that are kept, each a [`Field`], and [`Metadata`]. What cannot be read as this, or panics
    /// while it is, ends the watch, which is tried again; what is wrong in a [`Field`] ends there.
    type Wire: for<'de> Deserialize<'de>;
    /// What it is called.
    const KIND: Kind;
    /// Takes over what is kept.
    fn decode(wire: Self::Wire) -> (Meta, Self);
    /// `metadata.uid`: tells this object from an earlier one of the same name.
    fn uid(&self) -> &str;
    /// The names of other objects in the same namespace that this one refers to: what it wants to be there, what it reads,
    /// who controls it. A change of one of these enqueues what refers to it, where the builder
    /// [owns](crate::Builder::owns) or [watches](crate::Builder::watches) its kind; of whichever of these kinds it is. (Others of
    /// the kind that is reconciled are not among them.)
    fn references(&self) -> impl Iterator<Item = &str>;
    /// Who controls it, by [`Metadata::take_owner`]: a [`Writer`](crate::Writer) changes and deletes nothing of a kind that is
    /// made here but what the object that is being reconciled controls. Without this, it is nothing.
    fn owner(&self) -> Option<&Owner> {
        None
    }
    /// Whatever somebody else changes in it on purpose, and nothing that changes by itself, as counts in a status do. While
    /// this stays as it is, a patch that has changed nothing is not sent again. Of the kind that is reconciled, it is also what
    /// [`confirm`](crate::Writer::confirm) compares, beside the UID, the generation and whether it is being deleted.
    fn content(&self, state: &mut impl Hasher);
    /// Whether only a rollout has come further between `old` and `new`, and is not at its end. Such changes enqueue at a slower
    /// pace.
    #[must_use]
    fn is_progress(old: &Self, new: &Self) -> bool {
        _ = (old, new);
        false
    }
}

/// A kind that is reconciled: it has a generation, and a status that the controller reports.
pub trait Primary: Cached {
    /// The status subresource.
    type Status: Serialize + PartialEq;
    /// `metadata.generation`: grows with each change of the spec.
    fn generation(&self) -> i64;
    /// Whether it is being deleted.
    fn is_deleting(&self) -> bool;
    /// The status as last stored.
    fn status(&self) -> &Self::Status;
    /// Whether that status is of the generation of now.
    fn is_observed(&self) -> bool;
    /// What a status says, whenever it came to say so: without times.
    fn says(status: &Self::Status, state: &mut impl Hasher);
    /// The trace that changed it, where its annotation `<application>/traceparent` names one.
    fn trace(&self) -> Option<&SpanContext> {
        None
    }
}

/// A kind with a [`Finalizer`](crate::Finalizer).
pub trait Finalizable: Primary {
    /// `metadata.finalizers`, all of them, by [`Metadata::take_finalizers`]: those that are not named here are taken away with
    /// the next change.
    fn finalizers(&self) -> &[String];
}

/// [`Cached::content`], to be hashed.
pub(crate) struct Content<'a, V>(pub &'a V);

impl<V: Cached> Hash for Content<'_, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.uid().hash(state);
        self.0.content(state);
    }
}

/// What a primary asks for: all but its status and most of its metadata. A cluster that was restored from a backup counts
/// generations anew.
pub(crate) fn asks_for<P: Primary>(object: &P) -> impl PartialEq + use<P> {
    let mut content = DefaultHasher::new();
    Content(object).hash(&mut content);
    (object.generation(), object.is_deleting(), content.finish())
}

/// [`Primary::says`], to be hashed.
pub(crate) struct Says<'a, P: Primary>(pub &'a P::Status);

impl<P: Primary> Hash for Says<'_, P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        P::says(self.0, state);
    }
}

/// An object as it arrives: its cached form, and what the store files it under.
#[derive(Clone, Debug)]
pub struct Object<V> {
    // kube's client reads the resourceVersion from here; the other fields stay empty.
    meta: ObjectMeta,
    /// `namespace/name`.
    pub key: Key,
    /// `metadata.resourceVersion` as a number: comparable within a resource type (KEP-5504), which every
    /// supported API server's is. 0 where it is not a number.
    pub version: u64,
    /// What is kept of it.
    pub view: V,
}

impl<V> Object<V> {
    fn new(meta: Meta, view: V) -> Self {
        let (key, version) = meta.key_and_version();
        Self {
            key,
            version,
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
        // The answer to a write: what a watch could not bring does not get into a store by another way.
        let Incoming(object) = Incoming::deserialize(deserializer)?;
        object.map_err(|(_, panicked)| D::Error::custom(panicked))
    }
}

/// An object as a watch brings it, or which one it is that its kind's code panics at.
#[derive(Clone, Debug)]
pub(crate) struct Incoming<V>(pub Result<Object<V>, (Meta, Panicked)>);

impl<V: Cached> Incoming<V> {
    /// `metadata.resourceVersion`.
    pub fn resource_version(&self) -> &str {
        match &self.0 {
            Ok(object) => object.meta.resource_version.as_deref().unwrap_or_default(),
            Err((meta, _)) => &meta.resource_version,
        }
    }

    pub fn key_and_version(&self) -> (Key, u64) {
        match &self.0 {
            Ok(object) => (object.key.clone(), object.version),
            Err((meta, _)) => meta.key_and_version(),
        }
    }
}

impl<'de, V: Cached> Deserialize<'de> for Incoming<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // What panics in here leaves nothing that could be read on: it ends the watch, or the page.
        let read = || V::Wire::deserialize(deserializer);
        let wire = catch(&V::KIND, "Deserialize", read).map_err(D::Error::custom)??;
        let decoded = catch(&V::KIND, "Cached::decode", || V::decode(wire));
        let checked = decoded.and_then(|(meta, view)| {
            // What a store asks for at each change, while nobody else can look into it.
            let refer = || view.references().for_each(drop);
            catch(&V::KIND, "Cached::references", refer).map(|()| Object::new(meta, view))
        });
        let which = |panicked| (LAST_READ.with_borrow(Meta::clone), panicked);
        Ok(Self(checked.map_err(which)))
    }
}

thread_local! {
    /// What was read last of a [`Metadata`], which whoever panics takes along.
    static LAST_READ: RefCell<Meta> = RefCell::default();
}

/// Reads a text, and notes it in [`LAST_READ`].
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
    type Scope = NamespaceResourceScope;

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

/// A field of whatever shape and depth: what it should be, or what is wrong with it.
///
/// Its text is skipped, which has no limit of depth as reading has, and read by itself: what is wrong in it ends there. (For
/// that it must be text still. In a watch it is, since the API server names an event's type before its object.)
pub struct Field<T>(Result<T, Wrong>);

/// What is wrong with a field.
#[derive(Debug)]
struct Wrong {
    /// The member of the field that it is wrong with, if it is one.
    member: Option<String>,
    words: String,
}

impl<T: DeserializeOwned> Field<T> {
    pub(crate) fn read(text: &str) -> Self {
        let Ok(read) = catch_unwind(|| serde_json::from_str(text)) else {
            let words = "reading it panicked".to_owned();
            return Self(Err(Wrong {
                member: None,
                words,
            }));
        };
        Self(read.map_err(|error| {
            let words = error.to_string();
            // Where in the field's text is nothing that a user can look up.
            let place = words.rfind(" at line ").unwrap_or(words.len());
            Wrong {
                member: member_at(text, &error).map(|member| brief(&member)),
                // It quotes the value, of whatever length.
                words: brief(&words[..place]),
            }
        }))
    }
}

/// The member of this JSON map whose value the error is about.
fn member_at(text: &str, error: &serde_json::Error) -> Option<String> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    let lines = text
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1));
    // Within the value, or right behind it.
    let at = lines.map(str::len).sum::<usize>() + error.column();
    let mut members = members.into_iter();
    let found = members.find(|(_, value)| {
        let from = value.get().as_ptr().addr() - text.as_ptr().addr();
        (from..=from + value.get().len()).contains(&at)
    });
    found.map(|(member, _)| member)
}

impl<T> Field<T> {
    /// What it should be.
    ///
    /// # Errors
    /// What is wrong with it, or with which member of it, for its user, who knows it by this name.
    pub fn into_result(self, name: &str) -> Result<T, String> {
        self.0.map_err(|Wrong { member, words }| {
            let member = member.map(|member| format!(".{member}"));
            format!("{name}{}: {words}", member.unwrap_or_default())
        })
    }
}

impl<T: Default> Field<T> {
    /// What it should be, or the default where it is something else.
    pub fn or_default(self) -> T {
        self.0.unwrap_or_default()
    }
}

/// A field that is not there is null.
impl<T: DeserializeOwned> Default for Field<T> {
    fn default() -> Self {
        Self::read("null")
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|text| Self::read(text.get()))
    }
}

/// What a store files an object under.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    name: String,
    namespace: String,
    resource_version: String,
}

impl Meta {
    fn key_and_version(&self) -> (Key, u64) {
        let key = Key::new(&self.namespace, &self.name);
        (key, self.resource_version.parse().unwrap_or(0))
    }
}

/// The places of what is noted of a [`Metadata`].
const NAME: usize = 0;
const NAMESPACE: usize = 1;
const RESOURCE_VERSION: usize = 2;

/// The parts of `metadata` that are read, with those of the labels (`L`) and annotations (`A`) that are kept. What is no
/// [`Field`] is the API server's own.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(bound = "L: DeserializeOwned, A: DeserializeOwned")]
pub struct Metadata<L = IgnoredAny, A = IgnoredAny> {
    /// `metadata.name`.
    #[serde(deserialize_with = "note::<NAME, _>")]
    pub name: String,
    /// `metadata.namespace`.
    #[serde(default, deserialize_with = "note::<NAMESPACE, _>")]
    pub namespace: String,
    #[serde(deserialize_with = "note::<RESOURCE_VERSION, _>")]
    resource_version: String,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.generation`.
    #[serde(default)]
    pub generation: Field<i64>,
    /// Whether there is a `metadata.deletionTimestamp`.
    #[serde(default, rename = "deletionTimestamp", deserialize_with = "is_there")]
    pub deleting: bool,
    /// `metadata.labels`.
    #[serde(default)]
    pub labels: Field<L>,
    /// `metadata.annotations`.
    #[serde(default)]
    pub annotations: Field<A>,
    /// `metadata.ownerReferences`.
    #[serde(default)]
    pub owner_references: Field<Vec<Field<OwnerReference>>>,
    /// `metadata.finalizers`.
    #[serde(default)]
    pub finalizers: Field<Vec<Field<String>>>,
}

impl<L, A> Metadata<L, A> {
    /// What is left of it when the rest was taken over.
    #[must_use]
    pub fn into_meta(self) -> Meta {
        Meta {
            name: self.name,
            namespace: self.namespace,
            resource_version: self.resource_version,
        }
    }

    /// Takes the finalizers out.
    pub fn take_finalizers(&mut self) -> Vec<String> {
        let finalizers = std::mem::take(&mut self.finalizers).or_default();
        finalizers.into_iter().map(Field::or_default).collect()
    }

    /// Whether something controls it, of whatever kind.
    #[must_use]
    pub fn is_controlled(&self) -> bool {
        let owners = self.owner_references.0.as_ref().into_iter().flatten();
        owners
            .filter_map(|owner| owner.0.as_ref().ok())
            .any(|owner| owner.controller)
    }

    /// Takes the controller's ownerReference out, where it names an object of this kind in whatever version.
    pub fn take_owner(&mut self, kind: &Kind) -> Option<Owner> {
        let owners = std::mem::take(&mut self.owner_references).or_default();
        let mut owners = owners.into_iter().filter_map(|owner| owner.0.ok());
        owners.find_map(|owner| owner.controller_of(kind))
    }
}

/// An entry of `metadata.ownerReferences`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    api_version: String,
    kind: String,
    name: Box<str>,
    uid: Box<str>,
    #[serde(default)]
    controller: bool,
}

/// Who controls an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its name.
    pub name: Box<str>,
    /// Its UID.
    pub uid: Box<str>,
}

impl OwnerReference {
    fn controller_of(self, kind: &Kind) -> Option<Owner> {
        let group = self.api_version.split_once('/');
        let group = group.map_or("", |(group, _)| group);
        (self.controller && self.kind == kind.kind && group == kind.group).then_some(Owner {
            name: self.name,
            uid: self.uid,
        })
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

    /// A user reads which member to mend, wherever it is and however it is written.
    #[test]
    fn what_is_wrong_is_said_of_its_member() {
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
}
