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
mod tests;
