//! What the caches keep of a Foo and of a Deployment: the fields that reconcile reads, and nothing else.
//!
//! Everything else (managedFields, foreign annotations, the pod template's other fields) is skipped while
//! the JSON is being read, without ever being allocated. Nothing that a user stored can make an object
//! undecodable: a Foo whose spec or status has another shape is kept with the complaint, so that it can be
//! told about it (row R7) and the others are not held up.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::apps::v1 as apps, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::core::NamespaceResourceScope;
use opentelemetry::trace::SpanContext;
use serde::{Deserialize, Deserializer, de::IgnoredAny};

use super::{error::brief, key::Key};
use crate::{
    api::{self, FooSpec, FooStatus},
    telemetry::trace,
};

/// The annotation on a Deployment that tells which generation of its Foo it was made from (invariant I7).
pub const GENERATION_ANNOTATION: &str = "samplecontroller.k8s.io/foo-generation";

/// The annotation that binds the generation to the Foo and the Deployment that it is about: see [`made_for`].
pub const MADE_FOR_ANNOTATION: &str = "samplecontroller.k8s.io/made-for";

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
    /// The trace that changed it, where an annotation names one ([`trace::ANNOTATION`]).
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

/// The parts of `metadata` that are read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
    resource_version: String,
    uid: Box<str>,
    #[serde(default)]
    generation: i64,
    #[serde(default, deserialize_with = "is_there")]
    deletion_timestamp: bool,
    labels: Option<Labels>,
    annotations: Option<Annotations>,
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Deserialize)]
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
    spec: serde_json::Value,
    #[serde(default)]
    status: serde_json::Value,
}

impl View for Foo {
    type Raw = RawFoo;
    const RESOURCE: (&'static str, &'static str, &'static str, &'static str) =
        (api::GROUP, api::VERSION, api::KIND, api::PLURAL);

    fn from_raw(mut raw: RawFoo) -> (Metadata, Self) {
        let mut status = FooStatus::deserialize(raw.status).unwrap_or_default();
        // Serde grows it to twice what it holds.
        status.conditions.shrink_to_fit();
        let view = Self {
            uid: std::mem::take(&mut raw.metadata.uid),
            generation: raw.metadata.generation,
            deleting: raw.metadata.deletion_timestamp,
            trace: raw
                .metadata
                .annotations
                .as_ref()
                .and_then(|annotations| trace::parse(annotations.traceparent.as_deref()?))
                .map(Box::new),
            // It quotes the value, of whatever length.
            spec: FooSpec::deserialize(raw.spec)
                .map_err(|error| brief(&format!("spec: {error}")).into()),
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
    spec: RawDeploymentSpec,
    #[serde(default)]
    status: RawDeploymentStatus,
}

#[derive(Deserialize)]
struct RawDeploymentSpec {
    #[serde(default = "one")]
    replicas: i32,
    #[serde(default)]
    selector: RawSelector,
    template: RawTemplate,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSelector {
    #[serde(default)]
    match_labels: Labels,
}

#[derive(Deserialize)]
struct RawTemplate {
    #[serde(default)]
    metadata: RawTemplateMetadata,
    #[serde(default)]
    spec: RawPodSpec,
}

#[derive(Default, Deserialize)]
struct RawTemplateMetadata {
    #[serde(default)]
    labels: Labels,
}

#[derive(Default, Deserialize)]
struct RawPodSpec {
    #[serde(default)]
    containers: Vec<RawContainer>,
}

#[derive(Deserialize)]
struct RawContainer {
    name: String,
    #[serde(default)]
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
        let labels = Arc::new(metadata.labels.take().unwrap_or_default());
        let owners = metadata.owner_references.take();
        let owner = owners.and_then(|owners| owners.into_iter().find_map(OwnerReference::of_foo));
        let view = Self {
            uid: std::mem::take(&mut metadata.uid),
            foo_generation: metadata.annotations.as_ref().zip(owner.as_ref()).and_then(
                |(annotations, owner)| annotations.generation_for(&owner.uid, &metadata.name),
            ),
            owner,
            deleting: metadata.deletion_timestamp,
            generation: metadata.generation,
            selector: raw.spec.selector.match_labels.sharing(&labels),
            pod_labels: raw.spec.template.metadata.labels.sharing(&labels),
            labels,
            image: raw
                .spec
                .template
                .spec
                .containers
                .into_iter()
                .find(|container| container.name == super::desired::CONTAINER)
                .and_then(|container| container.image),
            replicas: raw.spec.replicas,
            progress: Progress {
                observed_generation: raw.status.observed_generation,
                replicas: raw.status.replicas,
                updated: raw.status.updated_replicas,
                available: raw.status.available_replicas,
                stuck: raw
                    .status
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

// The API server's default, which it fills in before anything is stored.
fn one() -> i32 {
    1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

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
