//! What the caches keep of a Foo and of a Deployment: the fields that reconcile reads, and nothing else.
//!
//! Everything else (managedFields, foreign annotations, the pod template's other fields) is skipped while
//! the JSON is being read, without ever being allocated. Nothing that a user stored can make an object
//! undecodable ([`Field`]): a Foo whose spec or status has another shape is kept with the complaint, so that it can be
//! told about it (row R7) and the others are not held up.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::apps::v1 as apps, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::core::NamespaceResourceScope;
use opentelemetry::trace::SpanContext;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::value::RawValue;

use operator_runtime::{Key, telemetry::trace};

use super::error::brief;
use crate::api::{self, FooSpec, FooStatus};

/// The annotation on a Deployment that tells which generation of its Foo it was made from (invariant I7).
pub const GENERATION_ANNOTATION: &str = "samplecontroller.k8s.io/foo-generation";

/// The annotation that binds the generation to the Foo and the Deployment that it is about: see [`made_for`].
pub const MADE_FOR_ANNOTATION: &str = "samplecontroller.k8s.io/made-for";

/// The annotation by which an object names the trace that changed it: a `traceparent` of W3C Trace Context. Whoever
/// changes a Foo may set it; on the controller's events it names the reconcile.
pub const TRACE_ANNOTATION: &str = "foo-controller/traceparent";

/// What the controller writes on the Deployment of this name that it makes for the Foo of this UID. A copy of the
/// Deployment under another name carries one that does not match, whatever else in it was renamed, and so does a
/// Deployment that was given to another Foo.
#[must_use]
pub fn made_for(foo_uid: &str, deployment: &str) -> String {
    let text = format!("{foo_uid}/{deployment}");
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let first = digest.as_ref().iter().take(8);
    let number = first.fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    format!("{number:016x}")
}

/// A Foo as the cache keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct Foo {
    /// `metadata.uid`: tells this Foo from an earlier one of the same name.
    pub uid: Box<str>,
    /// `metadata.generation`: grows with each change of the spec.
    pub generation: i64,
    /// Whether the Foo is being deleted (row R8).
    pub deleting: bool,
    /// The trace that changed it, where an annotation names one ([`TRACE_ANNOTATION`]).
    pub trace: Option<Box<SpanContext>>,
    /// The spec, or what is wrong with it.
    pub spec: Result<FooSpec, Box<str>>,
    /// The status as last written; the default when there is none or it has another shape.
    pub status: FooStatus,
}

/// A Deployment as the cache keeps it, whoever made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployment {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// The Foo that controls it, if one does (row R10).
    pub owner: Option<Owner>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// `metadata.generation`.
    pub generation: i64,
    /// The generation of its Foo that it was last made from ([`GENERATION_ANNOTATION`]); `None` unless the controller
    /// made it, under this name and for the Foo that controls it ([`made_for`]).
    pub foo_generation: Option<i64>,
    /// `metadata.labels`.
    pub labels: Arc<Labels>,
    /// `spec.selector.matchLabels`; where they are the same, the same copy.
    pub selector: Arc<Labels>,
    /// `spec.template.metadata.labels`, likewise.
    pub pod_labels: Arc<Labels>,
    /// The image of the container `nginx`.
    pub image: Option<Box<str>>,
    /// `spec.replicas`.
    pub replicas: i32,
    /// What the Deployment controller says of it.
    pub progress: Progress,
}

/// The controller ownerReference of a Deployment, where it names a Foo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The Foo's name.
    pub name: Box<str>,
    /// The Foo's UID.
    pub uid: Box<str>,
}

/// The labels that the controller owns (row R1); others are nobody's business here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// `app`
    pub app: Option<Box<str>>,
    /// `controller`: the Foo's name.
    pub controller: Option<Box<str>>,
}

/// `status` of a Deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The Deployment's generation that the counts are about.
    pub observed_generation: i64,
    /// Pods that it has.
    pub replicas: i32,
    /// Pods that are made from its current template.
    pub updated: i32,
    /// Pods that are available.
    pub available: i32,
    /// Whether it has given up making progress (`ProgressDeadlineExceeded`).
    pub stuck: bool,
}

/// A kind of object that can be cached: how it is asked for, and how its JSON becomes a view.
pub trait View: Clone + std::fmt::Debug + PartialEq + Send + Sync + Sized + 'static {
    /// The JSON's own shape.
    type Raw: for<'de> Deserialize<'de>;
    /// API group, version, kind and plural.
    const RESOURCE: (&'static str, &'static str, &'static str, &'static str);
    /// Takes over what is kept.
    fn from_raw(raw: Self::Raw) -> (Metadata, Self);
    /// The other object of the same namespace that this one speaks of: a Foo the Deployment that it wants,
    /// a Deployment the Foo that controls it.
    fn refers_to(&self) -> Option<&str>;
}

/// An object as it arrives: its view, and what the cache files it under.
#[derive(Clone, Debug)]
pub struct Object<V> {
    // kube's watcher reads the resourceVersion from here; the other fields stay empty.
    meta: ObjectMeta,
    /// `namespace/name`.
    pub key: Key,
    /// `metadata.resourceVersion` as a number: comparable within a resource type (KEP-5504), which every
    /// supported API server's is. 0 where it is not a number.
    pub version: u64,
    /// What is kept of it.
    pub view: V,
}

impl<'de, V: View> Deserialize<'de> for Object<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (metadata, view) = V::from_raw(V::Raw::deserialize(deserializer)?);
        Ok(Self {
            key: Key::new(&metadata.namespace, &metadata.name),
            version: metadata.resource_version.parse().unwrap_or(0),
            meta: ObjectMeta {
                resource_version: Some(metadata.resource_version),
                ..ObjectMeta::default()
            },
            view,
        })
    }
}

impl<V: View> kube::Resource for Object<V> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn group((): &()) -> std::borrow::Cow<'_, str> {
        V::RESOURCE.0.into()
    }
    fn version((): &()) -> std::borrow::Cow<'_, str> {
        V::RESOURCE.1.into()
    }
    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        V::RESOURCE.2.into()
    }
    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        V::RESOURCE.3.into()
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
pub struct Field<T>(Result<T, String>);

impl<T: DeserializeOwned> Field<T> {
    fn read(text: &str) -> Self {
        Self(serde_json::from_str(text).map_err(|error| {
            let words = error.to_string();
            // Where in the field's text is nothing that a user can look up.
            let place = words.rfind(" at line ").unwrap_or(words.len());
            // It quotes the value, of whatever length.
            brief(&words[..place])
        }))
    }
}

impl<T: Default> Field<T> {
    fn or_default(self) -> T {
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

/// The parts of `metadata` that are read. What is no [`Field`] is the API server's own.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
    resource_version: String,
    uid: Box<str>,
    #[serde(default)]
    generation: Field<i64>,
    #[serde(default, deserialize_with = "is_there")]
    deletion_timestamp: bool,
    #[serde(default)]
    labels: Field<Labels>,
    #[serde(default)]
    annotations: Field<Annotations>,
    #[serde(default)]
    owner_references: Field<Vec<Field<OwnerReference>>>,
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(rename = "samplecontroller.k8s.io/foo-generation")]
    generation: Option<String>,
    #[serde(rename = "samplecontroller.k8s.io/made-for")]
    made_for: Option<String>,
    #[serde(rename = "foo-controller/traceparent")]
    traceparent: Option<String>,
}

impl Annotations {
    /// The generation of the Foo of this UID that the Deployment of this name was made from.
    fn generation_for(&self, foo_uid: &str, deployment: &str) -> Option<i64> {
        let generation = self.generation.as_ref()?.parse().ok()?;
        (*self.made_for.as_ref()? == made_for(foo_uid, deployment)).then_some(generation)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnerReference {
    api_version: String,
    kind: String,
    name: Box<str>,
    uid: Box<str>,
    #[serde(default)]
    controller: bool,
}

/// The JSON of a Foo.
#[derive(Deserialize)]
pub struct RawFoo {
    metadata: Metadata,
    #[serde(default)]
    spec: Field<FooSpec>,
    #[serde(default)]
    status: Field<FooStatus>,
}

impl View for Foo {
    type Raw = RawFoo;
    const RESOURCE: (&'static str, &'static str, &'static str, &'static str) =
        (api::GROUP, api::VERSION, api::KIND, api::PLURAL);

    fn from_raw(mut raw: RawFoo) -> (Metadata, Self) {
        let mut status = raw.status.or_default();
        // Serde grows it to twice what it holds.
        status.conditions.shrink_to_fit();
        let view = Self {
            uid: std::mem::take(&mut raw.metadata.uid),
            generation: std::mem::take(&mut raw.metadata.generation).or_default(),
            deleting: raw.metadata.deletion_timestamp,
            trace: std::mem::take(&mut raw.metadata.annotations)
                .or_default()
                .traceparent
                .and_then(|traceparent| trace::parse(&traceparent))
                .map(Box::new),
            spec: raw
                .spec
                .0
                .map_err(|complaint| format!("spec: {complaint}").into()),
            status,
        };
        (raw.metadata, view)
    }

    fn refers_to(&self) -> Option<&str> {
        self.spec
            .as_ref()
            .ok()
            .map(|spec| spec.deployment_name.as_str())
    }
}

/// The JSON of a Deployment.
#[derive(Deserialize)]
pub struct RawDeployment {
    metadata: Metadata,
    #[serde(default)]
    spec: Field<RawDeploymentSpec>,
    #[serde(default)]
    status: Field<RawDeploymentStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawDeploymentSpec {
    // The API server fills in its own default before anything is stored.
    replicas: i32,
    selector: RawSelector,
    template: RawTemplate,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSelector {
    match_labels: Labels,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawTemplate {
    metadata: RawTemplateMetadata,
    spec: RawPodSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawTemplateMetadata {
    labels: Labels,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawPodSpec {
    containers: Vec<RawContainer>,
}

#[derive(Deserialize)]
struct RawContainer {
    name: String,
    image: Option<Box<str>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawDeploymentStatus {
    observed_generation: i64,
    replicas: i32,
    updated_replicas: i32,
    available_replicas: i32,
    conditions: Vec<RawCondition>,
}

#[derive(Deserialize)]
struct RawCondition {
    #[serde(default)]
    reason: String,
}

impl View for Deployment {
    type Raw = RawDeployment;
    const RESOURCE: (&'static str, &'static str, &'static str, &'static str) = {
        use k8s_openapi::Resource as R;
        type D = apps::Deployment;
        (
            <D as R>::GROUP,
            <D as R>::VERSION,
            <D as R>::KIND,
            <D as R>::URL_PATH_SEGMENT,
        )
    };

    fn from_raw(mut raw: RawDeployment) -> (Metadata, Self) {
        let metadata = &mut raw.metadata;
        let (spec, status) = (raw.spec.or_default(), raw.status.or_default());
        let labels = Arc::new(std::mem::take(&mut metadata.labels).or_default());
        let owners = std::mem::take(&mut metadata.owner_references).or_default();
        let mut owners = owners.into_iter().filter_map(|owner| owner.0.ok());
        let owner = owners.find_map(OwnerReference::of_foo);
        let annotations = std::mem::take(&mut metadata.annotations).or_default();
        let view = Self {
            uid: std::mem::take(&mut metadata.uid),
            foo_generation: owner
                .as_ref()
                .and_then(|owner| annotations.generation_for(&owner.uid, &metadata.name)),
            owner,
            deleting: metadata.deletion_timestamp,
            generation: std::mem::take(&mut metadata.generation).or_default(),
            selector: spec.selector.match_labels.sharing(&labels),
            pod_labels: spec.template.metadata.labels.sharing(&labels),
            labels,
            image: spec
                .template
                .spec
                .containers
                .into_iter()
                .find(|container| container.name == super::desired::CONTAINER)
                .and_then(|container| container.image),
            replicas: spec.replicas,
            progress: Progress {
                observed_generation: status.observed_generation,
                replicas: status.replicas,
                updated: status.updated_replicas,
                available: status.available_replicas,
                stuck: status
                    .conditions
                    .iter()
                    .any(|c| c.reason == "ProgressDeadlineExceeded"),
            },
        };
        (raw.metadata, view)
    }

    fn refers_to(&self) -> Option<&str> {
        self.owner.as_ref().map(|owner| &*owner.name)
    }
}

impl OwnerReference {
    /// Row R10: only a controller reference to a Foo of our API group, in whatever version, counts.
    fn of_foo(self) -> Option<Owner> {
        let group = self
            .api_version
            .split_once('/')
            .map_or("", |(group, _)| group);
        (self.controller && self.kind == api::KIND && group == api::GROUP).then_some(Owner {
            name: self.name,
            uid: self.uid,
        })
    }
}

impl Labels {
    /// As label map of an object.
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, String> {
        [("app", &self.app), ("controller", &self.controller)]
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value.as_deref()?.to_owned())))
            .collect()
    }

    fn sharing(self, other: &Arc<Self>) -> Arc<Self> {
        if self == **other {
            Arc::clone(other)
        } else {
            Arc::new(self)
        }
    }
}

fn is_there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_some())
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        reason = "a test fails by panicking"
    )]

    use kube::api::{ObjectList, WatchEvent};
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::fixtures::{deployment, foo, object};

    /// Row R7 and "bad input": a Foo of whatever shape is read, so that a list with it in is.
    #[test]
    fn a_foo_of_any_shape_can_be_read() {
        for (spec, complaint) in [
            ("", "spec: invalid type: null, expected struct FooSpec"),
            (
                "spec: 5",
                "spec: invalid type: integer `5`, expected struct FooSpec",
            ),
            ("spec: {}", "spec: missing field `deploymentName`"),
            (
                "spec: {deploymentName: 5}",
                "spec: invalid type: integer `5`, expected a string",
            ),
            (
                "spec: {deploymentName: a, replicas: two}",
                "spec: invalid type: string \"two\", expected i32",
            ),
            (
                "spec: {deploymentName: a, replicas: 2147483648}",
                "spec: invalid value: integer `2147483648`, expected i32",
            ),
        ] {
            let metadata =
                "metadata: {name: a, namespace: b, uid: u, resourceVersion: '1', labels: null}";
            let foo = object::<Foo>(&format!("{metadata}\n{spec}"));
            assert_eq!(foo.view.spec.unwrap_err().as_ref(), complaint, "{spec}");
        }
        let odd = object::<Foo>(
            "
            metadata: {name: a, namespace: b, uid: u, resourceVersion: '1'}
            spec: {deploymentName: a, unknown: [1]}
            status: garbage",
        );
        assert_eq!(odd.view.spec.unwrap().deployment_name, "a");
        assert_eq!(odd.view.status, FooStatus::default());
    }

    /// Whatever is stored in whichever field, and however deep: the object is read, as are those beside it in a list, and
    /// what is in the other fields is kept.
    #[test]
    fn no_field_can_make_an_object_undecodable() {
        const DEEP: usize = 10_000;
        let nests = [
            format!("{}{}", "[".repeat(DEEP), "]".repeat(DEEP)),
            format!("{}1{}", "{\"a\":".repeat(DEEP), "}".repeat(DEEP)),
        ];
        let scalars = [
            "null",
            "true",
            "-1",
            "1e400",
            "\"text\"",
            "[]",
            "{}",
            "[{\"a\": []}, 5]",
        ];
        let values = nests.iter().map(String::as_str).chain(scalars);
        let values: Vec<_> = values.collect();
        let foo = json!({
            "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo",
            "metadata": { "name": "foo", "namespace": "default", "uid": "u", "resourceVersion": "7",
                "generation": 2, "deletionTimestamp": null, "labels": {}, "managedFields": [],
                "annotations": { "foo-controller/traceparent": "t" }, "ownerReferences": [] },
            "spec": { "deploymentName": "web", "replicas": 3, "unknown": 1 },
            "status": { "availableReplicas": 1, "observedGeneration": 1, "replicas": 1, "selector": "s",
                "deploymentName": "web", "conditions": [{ "type": "Ready", "status": "True", "reason": "r",
                    "message": "m", "lastTransitionTime": "2020-01-01T00:00:00Z", "observedGeneration": 1 }] },
            "unknown": 1,
        });
        let read = any_field_is::<Foo>(&foo, &values);
        let is_kept = |foo: &Foo, place: &str| {
            place.starts_with("/spec") || foo.spec.as_ref().unwrap().deployment_name == "web"
        };
        for (place, foo) in &read {
            assert!(is_kept(&foo.view, place), "{place}: {foo:?}");
        }
        let deployment = json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "9",
                "generation": 2, "deletionTimestamp": null, "labels": { "app": "a" }, "managedFields": [],
                "annotations": { GENERATION_ANNOTATION: "2", MADE_FOR_ANNOTATION: "m" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Foo", "name": "f", "uid": "u" },
                    { "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "foo",
                      "uid": "u", "controller": true }] },
            "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "a" } },
                "template": { "metadata": { "labels": { "app": "a" } },
                    "spec": { "containers": [{ "name": "nginx", "image": "i", "env": [] }] } } },
            "status": { "observedGeneration": 2, "replicas": 3, "updatedReplicas": 3,
                "availableReplicas": 3, "conditions": [{ "type": "t", "reason": "r" }] },
        });
        for (place, deployment) in any_field_is::<Deployment>(&deployment, &values) {
            let owner = &deployment.view.owner;
            let is_kept = owner.as_ref().is_some_and(|owner| &*owner.name == "foo");
            let elsewhere = ["/metadata/ownerReferences/1", "/metadata/ownerReferences"];
            assert!(
                is_kept || elsewhere.iter().any(|other| place.starts_with(other)),
                "{place}: {deployment:?}"
            );
        }
    }

    /// The object with each of these values in the place of each of its fields in turn, and in which: as it comes in a list, by
    /// a watch and as an answer. What the API server itself makes sure of stays.
    fn any_field_is<V: View>(object: &Value, values: &[&str]) -> Vec<(String, Object<V>)> {
        const HERE: &str = "\"this field\"";
        let certain = ["name", "namespace", "uid", "resourceVersion"];
        let certain = certain.map(|field| format!("/metadata/{field}"));
        let mut read = Vec::new();
        for place in places(object, "") {
            if place == "/metadata" || certain.contains(&place) {
                continue;
            }
            let mut there = object.clone();
            *there.pointer_mut(&place).unwrap() = "this field".into();
            for value in values {
                let text = there.to_string().replace(HERE, value);
                let list = format!(
                    r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{object},{text},{object}]}}"#
                );
                let event = format!(r#"{{"type":"ADDED","object":{text}}}"#);
                let list: ObjectList<Object<V>> = serde_json::from_str(&list).expect(&place);
                let event: WatchEvent<Object<V>> = serde_json::from_str(&event).expect(&place);
                let answer: Object<V> = serde_json::from_str(&text).expect(&place);
                assert_eq!(list.items.len(), 3);
                let WatchEvent::Added(event) = event else {
                    panic!("{event:?}")
                };
                assert_eq!(
                    (&event.view, &list.items[1].view),
                    (&answer.view, &answer.view)
                );
                read.push((place.clone(), answer));
            }
        }
        read
    }

    /// Where there is a value in this one, as JSON pointers.
    fn places(value: &Value, place: &str) -> Vec<String> {
        let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
        let below: Vec<(String, &Value)> = match value {
            Value::Object(map) => map.iter().map(|(key, v)| (escaped(key), v)).collect(),
            Value::Array(items) => (0..).map(|n: usize| n.to_string()).zip(items).collect(),
            _ => Vec::new(),
        };
        let below = below.into_iter().flat_map(|(key, value)| {
            let place = format!("{place}/{key}");
            let deeper = places(value, &place);
            [place].into_iter().chain(deeper)
        });
        below.collect()
    }

    /// Row R10: a controller reference to a Foo of our group, in any version, and nothing else.
    #[test]
    fn only_a_foo_can_be_the_owner() {
        let owner = |reference: &str| {
            let yaml = format!(
                "
                metadata: {{name: d, namespace: n, uid: u, resourceVersion: '1', ownerReferences: [{reference}]}}
                spec: {{template: {{}}}}"
            );
            object::<Deployment>(&yaml)
                .view
                .owner
                .map(|owner| owner.name)
        };
        let foo = |group: &str, kind: &str, controller: bool| {
            format!(
                "{{apiVersion: {group}/v1alpha1, kind: {kind}, name: f, uid: u, controller: {controller}}}"
            )
        };
        assert_eq!(
            owner(&foo("samplecontroller.k8s.io", "Foo", true)).as_deref(),
            Some("f")
        );
        assert_eq!(owner(&foo("samplecontroller.k8s.io", "Foo", false)), None);
        assert_eq!(owner(&foo("samplecontroller.k8s.io", "Bar", true)), None);
        assert_eq!(owner(&foo("other.example.org", "Foo", true)), None);
        assert_eq!(
            owner("{apiVersion: v1, kind: Foo, name: f, uid: u, controller: true}"),
            None
        );
        assert_eq!(owner(""), None);
    }

    /// Invariant I7: a generation is one of a certain Foo, and says nothing of another one, nor of a copy that somebody
    /// made.
    #[test]
    fn a_generation_counts_for_the_foo_and_the_name_that_it_was_written_for() {
        let generation = |name: &str, owner: &str, made_for: &str| {
            object::<Deployment>(&format!(
                "
                metadata:
                  name: {name}
                  namespace: n
                  uid: u
                  resourceVersion: '1'
                  annotations: {{samplecontroller.k8s.io/foo-generation: '7', {made_for}}}
                  ownerReferences:
                  - {{apiVersion: samplecontroller.k8s.io/v1alpha1, kind: Foo, name: f, uid: {owner}, controller: true}}
                spec: {{template: {{}}}}"
            ))
            .view
            .foo_generation
        };
        let ours = format!("{MADE_FOR_ANNOTATION}: '{}'", made_for("foo-uid", "web"));
        assert_eq!(generation("web", "foo-uid", &ours), Some(7));
        assert_eq!(generation("web", "the-next-foo", &ours), None);
        assert_eq!(generation("web-copy", "foo-uid", &ours), None);
        assert_eq!(generation("web", "foo-uid", "by: hand"), None);
    }

    #[test]
    fn what_reconcile_reads_is_kept() {
        let foo = foo();
        assert_eq!(
            (
                foo.key.to_string().as_str(),
                foo.version,
                foo.view.generation
            ),
            ("default/foo", 7, 2)
        );
        let Object {
            key, version, view, ..
        } = deployment();
        assert_eq!((key.to_string().as_str(), version), ("default/web", 9));
        assert_eq!(view.foo_generation, Some(2));
        assert_eq!(view.image.as_deref(), Some("nginx:latest"));
        assert_eq!((view.replicas, view.progress.available), (3, 3));
        // The same labels thrice are kept once.
        assert_eq!(view.labels.controller.as_deref(), Some("foo"));
        assert!(Arc::ptr_eq(&view.labels, &view.selector));
        assert!(Arc::ptr_eq(&view.labels, &view.pod_labels));
    }
}
