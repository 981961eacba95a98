//! The desired Deployment of a Foo, and its difference from the actual Deployment. Pure functions without a client.

use k8s_openapi::{
    api::{
        apps::v1::{Deployment as Manifest, DeploymentSpec},
        core::v1::{Container, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
};
use serde_json::{Value, json};

use operator_runtime::{Key, Snapshot};

use super::{
    api,
    cached::{
        CONTAINER, Deployment, Foo, GENERATION_ANNOTATION, Labels, MADE_FOR_ANNOTATION, made_for,
    },
    error::Error,
};

/// The desired Deployment of a Foo.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired<'a> {
    /// The Deployment's key.
    pub key: Key,
    /// The Foo's name.
    foo_name: &'a str,
    /// The Foo's UID.
    foo_uid: &'a str,
    /// The generation of the Foo.
    generation: i64,
    /// The labels of the Deployment, its selector and its pods.
    labels: Labels,
    /// `None`: not controlled by the Foo.
    replicas: Option<i32>,
    image: &'a str,
    /// Whether the pod template must not be changed yet.
    keeps_template: bool,
}

impl<'a> Desired<'a> {
    /// Returns the desired Deployment of the Foo `key`.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] if the spec is undecodable or invalid.
    pub fn of(key: &'a Key, foo: &'a Foo, image: &'a str) -> Result<Self, Error> {
        let spec = foo
            .spec
            .as_ref()
            .map_err(|error| Error::InvalidSpec(error.to_string()))?;
        spec.check(key.name()).map_err(Error::InvalidSpec)?;
        Ok(Self {
            key: key.sibling(&spec.deployment_name),
            foo_name: key.name(),
            foo_uid: &foo.uid,
            generation: foo.generation,
            labels: Labels {
                app: Some("nginx".into()),
                controller: Some(key.name().into()),
            },
            replicas: spec.replicas,
            image,
            keeps_template: false,
        })
    }

    /// Leaves out the pod template, whose rollout has to wait.
    #[must_use]
    pub fn keeping_template(mut self) -> Self {
        self.keeps_template = true;
        self
    }

    /// Whether the pod template is left out.
    #[must_use]
    pub fn keeps_template(&self) -> bool {
        self.keeps_template
    }

    /// Whether the [difference](Self::difference) starts a rollout.
    #[must_use]
    pub fn changes_template(&self, actual: &Deployment) -> bool {
        !self.keeps_template && (self.changes_image(actual) || self.changes_pod_labels(actual))
    }

    fn changes_image(&self, actual: &Deployment) -> bool {
        actual.image.as_deref() != Some(self.image)
    }

    fn changes_pod_labels(&self, actual: &Deployment) -> bool {
        *actual.pod_labels != self.labels
    }

    /// Returns a strategic merge patch of the fields that differ. Returns `None` if no field differs, or if the Deployment is
    /// being deleted.
    ///
    /// # Errors
    /// [`Error::ResourceExists`] if the Foo does not control the Deployment, or [`Error::Deleting`] if it will be gone.
    pub fn difference(&self, actual: &Snapshot<Deployment>) -> Result<Option<Value>, Error> {
        let owner = actual.owner.as_ref();
        if owner.is_none_or(|owner| *owner.uid != *self.foo_uid) {
            let name = self.key.name().to_owned();
            // The garbage collector deletes the Deployment of an earlier Foo.
            let is_of_earlier = owner.is_some_and(|owner| owner.key.name() == self.foo_name);
            return Err(if actual.deleting || is_of_earlier {
                Error::Deleting(name)
            } else {
                Error::ResourceExists(name, self.adoption(actual))
            });
        }
        Ok(self.plan(actual))
    }

    /// Returns the command for the user to adopt the Deployment, or an empty text if it cannot be adopted.
    ///
    /// A Deployment can be adopted if the controller created it for a Foo of this name, and nothing controls it now. All labels
    /// must match, because the selector is immutable.
    fn adoption(&self, actual: &Deployment) -> String {
        let labels = [&actual.labels, &actual.selector, &actual.pod_labels];
        if !actual.orphaned || labels.iter().any(|labels| ***labels != self.labels) {
            return String::new();
        }
        // A strategic merge patch merges owner references by UID, so other owners stay.
        let patch = json!({ "metadata": { "ownerReferences": [self.owner()] } });
        format!(
            "; it was made for a Foo of this name. To give it to this Foo: kubectl patch deployment {} -n {} -p '{patch}'",
            self.key.name(),
            self.key.namespace(),
        )
    }

    fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: api::api_version(),
            kind: api::KIND.to_owned(),
            name: self.foo_name.to_owned(),
            uid: self.foo_uid.to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    /// Returns the [difference](Self::difference) of a Deployment that the Foo is known to control.
    #[must_use]
    pub fn plan(&self, actual: &Deployment) -> Option<Value> {
        if actual.deleting {
            return None;
        }
        self.patch(actual)
    }

    /// Returns the desired state for the Deployment of an earlier name. Use it only to [scale](Self::scale).
    #[must_use]
    pub fn of_earlier(&self, key: Key) -> Self {
        Self {
            key,
            ..self.clone()
        }
    }

    /// Returns the patch that scales the Deployment of an earlier name, which serves until the new Deployment is available.
    #[must_use]
    pub fn scale(&self, actual: &Deployment) -> Option<Value> {
        let replicas = self.replicas.filter(|wanted| *wanted != actual.replicas)?;
        if actual.deleting {
            return None;
        }
        let mut patch = json!({ "spec": { "replicas": replicas } });
        self.annotate(&mut patch["metadata"]);
        Some(patch)
    }

    /// Whether the Deployment names a newer generation of the Foo than the cached Foo has.
    ///
    /// Either the cache is behind, and must not revert the newer Foo's changes. Or a client has edited the annotation.
    #[must_use]
    pub fn is_behind(&self, actual: &Deployment) -> bool {
        let made_from = actual.foo_generation;
        made_from.is_some_and(|generation| generation > self.generation)
    }

    /// Returns the manifest of the new Deployment. If the Foo does not specify replicas, they are copied from the `replaced`
    /// Deployment.
    #[must_use]
    pub fn manifest(&self, replaced: Option<&Deployment>) -> Manifest {
        let labels = self.labels.to_map();
        Manifest {
            metadata: ObjectMeta {
                name: Some(self.key.name().to_owned()),
                namespace: Some(self.key.namespace().to_owned()),
                labels: Some(labels.clone()),
                annotations: Some(
                    self.annotations()
                        .map(|(name, value)| (name.to_owned(), value))
                        .into(),
                ),
                owner_references: Some(vec![self.owner()]),
                ..ObjectMeta::default()
            },
            spec: Some(DeploymentSpec {
                replicas: self.replicas.or(replaced.map(|old| old.replicas)),
                selector: LabelSelector {
                    match_labels: Some(labels.clone()),
                    ..LabelSelector::default()
                },
                template: PodTemplateSpec {
                    metadata: Some(ObjectMeta {
                        labels: Some(labels),
                        ..ObjectMeta::default()
                    }),
                    spec: Some(PodSpec {
                        containers: vec![Container {
                            name: CONTAINER.to_owned(),
                            image: Some(self.image.to_owned()),
                            ..Container::default()
                        }],
                        ..PodSpec::default()
                    }),
                },
                ..DeploymentSpec::default()
            }),
            status: None,
        }
    }

    /// Returns the annotations that identify the Foo and its generation.
    fn annotations(&self) -> [(&'static str, String); 2] {
        let made_for = made_for(self.foo_uid, self.key.name());
        [
            (GENERATION_ANNOTATION, self.generation.to_string()),
            (MADE_FOR_ANNOTATION, made_for),
        ]
    }

    /// Returns a patch of the differing fields. Fields of other clients stay.
    fn patch(&self, actual: &Deployment) -> Option<Value> {
        // Destructured without `..`, so that each new field is compared or ignored deliberately.
        let Deployment {
            uid: _,
            deleting: _,
            generation: _,
            foo_generation: _,
            labels,
            // Immutable.
            selector: _,
            // Compared below, unless the template is left out.
            pod_labels: _,
            image: _,
            replicas,
            // Users pause and resume rollouts.
            paused: _,
            orphaned: _,
            progress: _,
        } = actual;
        let mut spec = json!({});
        let mut metadata = json!({});
        if let Some(wanted) = self.replicas.filter(|wanted| wanted != replicas) {
            spec["replicas"] = wanted.into();
        }
        if !self.keeps_template && self.changes_image(actual) {
            spec["template"]["spec"]["containers"] =
                json!([{ "name": CONTAINER, "image": self.image }]);
        }
        if !self.keeps_template && self.changes_pod_labels(actual) {
            spec["template"]["metadata"]["labels"] = json!(self.labels.to_map());
        }
        if **labels != self.labels {
            metadata["labels"] = json!(self.labels.to_map());
        }
        if spec == json!({}) && metadata == json!({}) && !self.is_behind(actual) {
            return None;
        }
        self.annotate(&mut metadata);
        Some(json!({ "metadata": metadata, "spec": spec }))
    }

    fn annotate(&self, metadata: &mut Value) {
        for (name, value) in self.annotations() {
            metadata["annotations"][name] = value.into();
        }
    }
}

#[cfg(test)]
mod tests;
