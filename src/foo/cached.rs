//! What the stores keep of a Foo and of a Deployment. A Foo whose spec or status has another shape is kept with the
//! complaint, so that it can be told about it (row R7) and the others are not held up.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::Arc,
};

use k8s_openapi::{api::apps::v1 as apps, apimachinery::pkg::apis::meta::v1::Condition};
use opentelemetry::trace::SpanContext;
use operator_runtime::{Cached, Field, Kind, Meta, Metadata, Owner, Primary, telemetry::trace};
use serde::{Deserialize, de::IgnoredAny};

use super::api::{self, FooSpec, FooStatus};

/// The name of the pod's one container (row R1).
pub const CONTAINER: &str = "nginx";

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
    /// The trace that changed it, where an annotation names one.
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

impl Deployment {
    /// Whether all that it asks for is there: `kubectl rollout status` would say so, too.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let progress = &self.progress;
        !self.deleting
            && progress.observed_generation >= self.generation
            && progress.updated >= self.replicas
            && progress.replicas <= progress.updated
            && progress.available >= self.replicas
    }
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

#[derive(Default, Deserialize)]
struct FooAnnotations {
    #[serde(rename = "foo-controller/traceparent")]
    traceparent: Option<String>,
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(rename = "samplecontroller.k8s.io/foo-generation")]
    generation: Option<String>,
    #[serde(rename = "samplecontroller.k8s.io/made-for")]
    made_for: Option<String>,
}

impl Annotations {
    /// The generation of the Foo of this UID that the Deployment of this name was made from.
    fn generation_for(&self, foo_uid: &str, deployment: &str) -> Option<i64> {
        let generation = self.generation.as_ref()?.parse().ok()?;
        (*self.made_for.as_ref()? == made_for(foo_uid, deployment)).then_some(generation)
    }
}

/// The JSON of a Foo.
#[derive(Deserialize)]
pub struct FooWire {
    metadata: Metadata<IgnoredAny, FooAnnotations>,
    #[serde(default)]
    spec: Field<FooSpec>,
    #[serde(default)]
    status: Field<FooStatus>,
}

impl Cached for Foo {
    type Wire = FooWire;
    const KIND: Kind = Kind::custom(api::GROUP, api::VERSION, api::KIND, api::PLURAL);

    fn decode(mut wire: FooWire) -> (Meta, Self) {
        let mut status = wire.status.or_default();
        // Serde grows it to twice what it holds.
        status.conditions.shrink_to_fit();
        let view = Self {
            uid: std::mem::take(&mut wire.metadata.uid),
            generation: std::mem::take(&mut wire.metadata.generation).or_default(),
            deleting: wire.metadata.deleting,
            trace: std::mem::take(&mut wire.metadata.annotations)
                .or_default()
                .traceparent
                .and_then(|traceparent| trace::parse(&traceparent))
                .map(Box::new),
            spec: wire
                .spec
                .into_result()
                .map_err(|complaint| format!("spec: {complaint}").into()),
            status,
        };
        (wire.metadata.into_meta(), view)
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    /// The Deployment that it asks for, and the one that it had before, which serves until that is available.
    fn references(&self) -> impl Iterator<Item = &str> {
        let wanted = self.spec.as_ref().ok();
        let wanted = wanted.map(|spec| spec.deployment_name.as_str());
        let served = self.status.deployment_name.as_deref();
        wanted
            .into_iter()
            .chain(served.filter(move |served| Some(*served) != wanted))
    }

    fn content(&self, state: &mut impl Hasher) {
        self.generation.hash(state);
    }
}

impl Primary for Foo {
    type Status = FooStatus;

    fn generation(&self) -> i64 {
        self.generation
    }

    fn is_deleting(&self) -> bool {
        self.deleting
    }

    fn status(&self) -> &FooStatus {
        &self.status
    }

    fn is_observed(&self) -> bool {
        self.status.observed_generation == Some(self.generation)
    }

    fn says(status: &FooStatus, state: &mut impl Hasher) {
        Content(status).hash(state);
    }

    fn trace(&self) -> Option<&SpanContext> {
        self.trace.as_deref()
    }
}

/// A status for what it says, whenever it came to be so.
#[derive(Clone, Copy)]
pub struct Content<'a>(pub &'a FooStatus);

impl<'a> Content<'a> {
    fn conditions(self) -> impl Iterator<Item = (&'a str, &'a str, &'a str, &'a str, Option<i64>)> {
        self.0.conditions.iter().map(|c| {
            let Condition {
                type_,
                status,
                reason,
                message,
                observed_generation,
                last_transition_time: _,
            } = c;
            (
                &**type_,
                &**status,
                &**reason,
                &**message,
                *observed_generation,
            )
        })
    }

    fn rest(self) -> impl PartialEq + Hash + 'a {
        let FooStatus {
            available_replicas,
            observed_generation,
            replicas,
            selector,
            deployment_name,
            conditions: _,
        } = self.0;
        (
            available_replicas,
            observed_generation,
            replicas,
            selector,
            deployment_name,
        )
    }
}

impl PartialEq for Content<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.rest() == other.rest() && self.conditions().eq(other.conditions())
    }
}

impl Hash for Content<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.rest().hash(state);
        self.conditions()
            .for_each(|condition| condition.hash(state));
    }
}

/// The JSON of a Deployment.
#[derive(Deserialize)]
pub struct DeploymentWire {
    metadata: Metadata<Labels, Annotations>,
    #[serde(default)]
    spec: Field<DeploymentSpecWire>,
    #[serde(default)]
    status: Field<DeploymentStatusWire>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DeploymentSpecWire {
    // The API server fills in its own default before anything is stored.
    replicas: i32,
    selector: SelectorWire,
    template: TemplateWire,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SelectorWire {
    match_labels: Labels,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TemplateWire {
    metadata: TemplateMetadataWire,
    spec: PodSpecWire,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TemplateMetadataWire {
    labels: Labels,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodSpecWire {
    containers: Vec<ContainerWire>,
}

#[derive(Deserialize)]
struct ContainerWire {
    name: String,
    image: Option<Box<str>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeploymentStatusWire {
    observed_generation: i64,
    replicas: i32,
    updated_replicas: i32,
    available_replicas: i32,
    conditions: Vec<ConditionWire>,
}

#[derive(Deserialize)]
struct ConditionWire {
    #[serde(default)]
    reason: String,
}

impl Cached for Deployment {
    type Wire = DeploymentWire;
    const KIND: Kind = Kind::of::<apps::Deployment>();

    fn decode(mut wire: DeploymentWire) -> (Meta, Self) {
        let metadata = &mut wire.metadata;
        let (spec, status) = (wire.spec.or_default(), wire.status.or_default());
        let labels = Arc::new(std::mem::take(&mut metadata.labels).or_default());
        let owner = metadata.take_owner(&Foo::KIND);
        let annotations = std::mem::take(&mut metadata.annotations).or_default();
        let view = Self {
            uid: std::mem::take(&mut metadata.uid),
            foo_generation: owner
                .as_ref()
                .and_then(|owner| annotations.generation_for(&owner.uid, &metadata.name)),
            owner,
            deleting: metadata.deleting,
            generation: std::mem::take(&mut metadata.generation).or_default(),
            selector: spec.selector.match_labels.sharing(&labels),
            pod_labels: spec.template.metadata.labels.sharing(&labels),
            labels,
            image: spec
                .template
                .spec
                .containers
                .into_iter()
                .find(|container| container.name == CONTAINER)
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
        (wire.metadata.into_meta(), view)
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    /// The Foo that controls it.
    fn references(&self) -> impl Iterator<Item = &str> {
        self.owner.iter().map(|owner| &*owner.name)
    }

    fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// Its rollout is no change that somebody makes.
    fn content(&self, state: &mut impl Hasher) {
        (self.generation, &self.labels).hash(state);
    }

    /// Whether a rollout has merely come further: the counts differ and nothing else, and it is not done.
    fn is_progress(old: &Self, new: &Self) -> bool {
        let counts_alone = Self {
            progress: new.progress,
            ..old.clone()
        } == *new;
        let further = counts_alone && old.progress != new.progress;
        further && !new.is_complete() && !old.is_complete() && !new.progress.stuck
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

    use crate::foo::fixtures::{deployment, foo, object};
    use operator_runtime::Object;

    use super::*;

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
    fn any_field_is<V: Cached>(object: &Value, values: &[&str]) -> Vec<(String, Object<V>)> {
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
