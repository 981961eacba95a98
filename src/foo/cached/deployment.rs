//! The cached form of a Deployment. The cache holds all Deployments, also those of other owners.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::Arc,
};

use k8s_openapi::api::apps::v1 as apps;
use operator_runtime::{Applied, Cached, Field, Kind, Meta, Metadata, brief};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::pool::Pool;

/// The name of the pod's only container.
pub const CONTAINER: &str = "nginx";

/// The annotation of a Deployment with the generation of the Foo at its last write.
pub const GENERATION_ANNOTATION: &str = "samplecontroller.k8s.io/foo-generation";

/// The annotation that binds the generation to its Foo and Deployment: see [`made_for`].
pub const MADE_FOR_ANNOTATION: &str = "samplecontroller.k8s.io/made-for";

/// Returns the value of [`MADE_FOR_ANNOTATION`]: a hash of the Foo's UID and the Deployment's name.
///
/// The value does not match in a copy of the Deployment under another name, or after a transfer to another Foo.
#[must_use]
pub fn made_for(foo_uid: &str, deployment: &str) -> String {
    let text = format!("{foo_uid}/{deployment}");
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let first = digest.as_ref().iter().take(8);
    let number = first.fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    format!("{number:016x}")
}

/// The cached form of a Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployment {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// `metadata.generation`.
    pub generation: i64,
    /// The generation of the Foo at the last write ([`GENERATION_ANNOTATION`]). `None` unless the controller created the
    /// Deployment under this name, for the Foo that controls it ([`made_for`]).
    pub foo_generation: Option<i64>,
    /// `metadata.labels`.
    pub labels: Arc<Labels>,
    /// `spec.selector.matchLabels`; shares memory with equal `labels`.
    pub selector: Arc<Labels>,
    /// `spec.template.metadata.labels`; shares memory with equal `labels`.
    pub pod_labels: Arc<Labels>,
    /// The image of the container `nginx`.
    pub image: Option<Arc<str>>,
    /// `spec.replicas`.
    pub replicas: i32,
    /// `spec.paused`.
    pub paused: bool,
    /// Whether the controller created it for some Foo, and nothing controls it now: after a restore from a backup, or after a
    /// deletion with the orphan policy.
    pub orphaned: bool,
    /// The status, written by the Deployment controller.
    pub progress: Progress,
}

impl Deployment {
    /// Whether the rollout is complete, as `kubectl rollout status` defines it.
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

    /// Whether the Deployment holds a place for its rollout, unless its Foo is terminating. `image` is the configured image.
    ///
    /// A rollout lasts from the patch until the Deployment controller has observed it and no pod of an earlier template is
    /// left. These rollouts hold no place:
    ///
    /// - a paused rollout;
    /// - a rollout of another image that has exceeded its deadline, or whose pods are rejected;
    /// - a rollout of a terminating Deployment, or of a Deployment that the controller did not create.
    #[must_use]
    pub fn rolls_out(&self, image: &str) -> bool {
        let progress = &self.progress;
        let is_ours = self.foo_generation.is_some() && !self.deleting;
        let is_blocked = progress.stuck || progress.failure.is_some();
        let is_status_suppressed = is_blocked && self.image.as_deref() != Some(image);
        // Zero: no Deployment controller has seen it, so no pod is replaced.
        let is_to_begin = !self.is_observed() && progress.observed_generation > 0;
        is_ours && (is_to_begin || self.is_replacing()) && !self.paused && !is_status_suppressed
    }

    /// Whether pods of an earlier template remain.
    #[must_use]
    pub fn is_replacing(&self) -> bool {
        self.is_observed() && self.progress.replicas > self.progress.updated
    }

    /// Whether the rollout waits for `kubectl rollout resume`. Scaling does not wait.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let progress = &self.progress;
        self.paused
            && self.is_observed()
            && (progress.replicas > progress.updated || progress.replicas == 0)
    }
}

/// The labels that the controller owns. Other labels are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// `app`: the same for all Deployments of the controller.
    #[serde(deserialize_with = "shared")]
    pub app: Option<Arc<str>>,
    /// `controller`: the Foo's name.
    pub controller: Option<Box<str>>,
}

/// `status` of a Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The Deployment's generation that the counts belong to.
    pub observed_generation: i64,
    /// The number of pods.
    pub replicas: i32,
    /// The number of pods of the current template.
    pub updated: i32,
    /// The number of available pods.
    pub available: i32,
    /// Whether the rollout has exceeded its deadline (`ProgressDeadlineExceeded`).
    pub stuck: bool,
    /// The message of the condition that reports rejected pods or a rejected `ReplicaSet`.
    pub failure: Option<Box<str>>,
}

/// Deserializes a text that many Deployments have.
fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<str>>, D::Error> {
    static TEXTS: Pool<str> = Pool::new();
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.map(|text| TEXTS.share(text.into())))
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(rename = "samplecontroller.k8s.io/foo-generation")]
    generation: Option<String>,
    #[serde(rename = "samplecontroller.k8s.io/made-for")]
    made_for: Option<String>,
}

impl Annotations {
    /// Returns the annotated generation if it belongs to this Foo and this Deployment.
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
    // Never absent: the API server fills in its default.
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
    #[serde(default, deserialize_with = "shared")]
    image: Option<Arc<str>>,
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
    /// Returns the message about rejected pods or a rejected `ReplicaSet`.
    ///
    /// A pod failure counts only for the observed generation. While a `ReplicaSet` is rejected, the generation is never
    /// observed.
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
        let labels = Arc::new(metadata.take_labels());
        let annotations = metadata.take_annotations();
        let generation = std::mem::take(&mut metadata.generation).or_default();
        let uid = std::mem::take(&mut metadata.uid);
        let owner = metadata.owner();
        let view = Self {
            uid,
            foo_generation: owner
                .and_then(|owner| annotations.generation_for(&owner.uid, &metadata.name)),
            deleting: metadata.deleting,
            generation,
            orphaned: owner.is_none()
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

    /// Excludes the progress of the rollout, which is not a change by a client. Hashes more than the generation, because an
    /// etcd restore reuses generations. Destructured without `..`, so that each new field is hashed or ignored deliberately.
    fn content(&self, state: &mut impl Hasher) {
        let Self {
            uid: _,
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

    /// Whether only the counts of an unfinished rollout differ.
    fn is_rollout_update(old: &Self, new: &Self) -> bool {
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

impl Applied for Deployment {
    type Desired = Value;

    fn manifest(desired: &Value) -> serde_json::Result<Value> {
        Ok(desired.clone())
    }

    fn actual(&self) -> Value {
        let generation = self.foo_generation.map(|it| it.to_string());
        let container = json!({ "name": CONTAINER, "image": self.image.as_deref() });
        let template = json!({
            "metadata": { "labels": self.pod_labels.to_map() },
            "spec": { "containers": [container] },
        });
        json!({
            "metadata": {
                "labels": self.labels.to_map(),
                "annotations": { GENERATION_ANNOTATION: generation },
            },
            "spec": { "replicas": self.replicas, "template": template },
        })
    }
}

impl Labels {
    /// Returns the label map of an object.
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, String> {
        let labels = [
            ("app", self.app.as_deref()),
            ("controller", self.controller.as_deref()),
        ];
        let present = labels.into_iter();
        present
            .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())))
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
