//! What the stores keep of a Deployment, whoever made it.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::Arc,
};

use k8s_openapi::api::apps::v1 as apps;
use operator_runtime::{Cached, Field, Kind, Meta, Metadata, Owner, brief};
use serde::Deserialize;

use super::foo::Foo;

/// The name of the pod's one container.
pub const CONTAINER: &str = "nginx";

/// The annotation on a Deployment that says which generation of its Foo it was made from (invariant I7).
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

/// A Deployment as the cache keeps it, whoever made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployment {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// The Foo that controls it, if one does.
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
    /// `spec.paused`.
    pub paused: bool,
    /// Whether the controller made it, for any Foo, and nothing controls it: a restored backup, or the result of an orphaning
    /// deletion.
    pub orphaned: bool,
    /// What the Deployment controller says of it.
    pub progress: Progress,
}

impl Deployment {
    /// Whether all that it asks for is there: `kubectl rollout status` would say so, too.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let progress = &self.progress;
        !self.deleting
            && self.is_observed()
            && progress.updated >= self.replicas
            && progress.replicas <= progress.updated
            && progress.available >= progress.updated
    }

    /// Whether the Deployment controller has observed the last change of its spec.
    #[must_use]
    pub fn is_observed(&self) -> bool {
        self.progress.observed_generation >= self.generation
    }

    /// Whether its rollout holds a place while `image` is the configured one: from the patch until the Deployment controller has
    /// observed it and no pod of the earlier template is left. Left out: a paused rollout; one past its deadline, or whose pods are
    /// refused, with an image that is not the configured one.
    #[must_use]
    pub fn rolls_out(&self, image: &str) -> bool {
        let progress = &self.progress;
        let is_ours = self.foo_generation.is_some() && !self.deleting;
        let is_blocked = progress.stuck || progress.failure.is_some();
        let is_given_up = is_blocked && self.image.as_deref() != Some(image);
        // Without a Deployment controller, no pod is replaced.
        let is_to_begin = !self.is_observed() && progress.observed_generation > 0;
        is_ours && (is_to_begin || self.is_replacing()) && !self.paused && !is_given_up
    }

    /// Whether there are pods of an earlier template beside those of the present one.
    #[must_use]
    pub fn is_replacing(&self) -> bool {
        self.is_observed() && self.progress.replicas > self.progress.updated
    }

    /// Whether its rollout waits for `kubectl rollout resume`. A paused Deployment is scaled nevertheless.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let progress = &self.progress;
        self.paused
            && self.is_observed()
            && (progress.replicas > progress.updated || progress.replicas == 0)
    }
}

/// The labels that the controller owns; others are nobody's business here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// `app`
    pub app: Option<Box<str>>,
    /// `controller`: the Foo's name.
    pub controller: Option<Box<str>>,
}

/// `status` of a Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Why it gets no pods, or no `ReplicaSet`: the message of its condition.
    pub failure: Option<Box<str>>,
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
    paused: bool,
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

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConditionWire {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    message: String,
}

impl DeploymentStatusWire {
    /// A refused pod belongs to the observed generation. With a refused `ReplicaSet`, the generation is never observed.
    fn failure(&self, generation: i64) -> Option<Box<str>> {
        let is_observed = self.observed_generation >= generation;
        let failed = self.conditions.iter().find(|c| match &*c.type_ {
            "ReplicaFailure" => c.status == "True" && is_observed,
            "Progressing" => c.reason == "ReplicaSetCreateError",
            _ => false,
        })?;
        Some(brief(&failed.message).into())
    }
}

impl Cached for Deployment {
    type Wire = DeploymentWire;
    const KIND: Kind = Kind::of::<apps::Deployment>();

    fn decode(mut wire: DeploymentWire) -> (Meta, Self) {
        let metadata = &mut wire.metadata;
        let (spec, status) = (wire.spec.or_default(), wire.status.or_default());
        let labels = Arc::new(std::mem::take(&mut metadata.labels).or_default());
        let is_controlled = metadata.is_controlled();
        let owner = metadata.take_owner(&Foo::KIND);
        let annotations = std::mem::take(&mut metadata.annotations).or_default();
        let generation = std::mem::take(&mut metadata.generation).or_default();
        let view = Self {
            uid: std::mem::take(&mut metadata.uid),
            foo_generation: owner
                .as_ref()
                .and_then(|owner| annotations.generation_for(&owner.uid, &metadata.name)),
            owner,
            deleting: metadata.deleting,
            generation,
            orphaned: !is_controlled
                && annotations.generation.is_some()
                && annotations.made_for.is_some(),
            paused: spec.paused,
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
                failure: status.failure(generation),
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

    /// Its rollout is no change that somebody makes. A restored backup counts generations anew. Taken apart without `..`: what is
    /// added is content, or not, on purpose.
    fn content(&self, state: &mut impl Hasher) {
        let Self {
            uid: _,
            owner: _,
            deleting: _,
            generation,
            foo_generation: _,
            labels,
            selector,
            pod_labels,
            image,
            replicas,
            paused,
            orphaned: _,
            progress: _,
        } = self;
        (generation, labels, selector, pod_labels).hash(state);
        (image, replicas, paused).hash(state);
    }

    /// Whether a rollout has merely come further: the counts differ and nothing else, and it is not done.
    fn is_progress(old: &Self, new: &Self) -> bool {
        let counts_alone = Self {
            progress: new.progress.clone(),
            ..old.clone()
        } == *new;
        let further = counts_alone && old.progress != new.progress;
        let is_same =
            old.progress.failure == new.progress.failure && old.is_held() == new.is_held();
        further && is_same && !new.is_complete() && !old.is_complete() && !new.progress.stuck
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
