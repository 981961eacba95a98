//! From a Foo to what its Deployment should be, and to what is wrong with the one that there is. Pure: no
//! client in sight.

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

/// What a Foo's Deployment should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired<'a> {
    /// The Deployment's key.
    pub key: Key,
    /// The Foo's name.
    foo_name: &'a str,
    /// The Foo's UID.
    foo_uid: &'a str,
    /// The Foo's generation that this was made from.
    generation: i64,
    /// On the Deployment, in its selector and on its pods alike.
    labels: Labels,
    /// `None`: not ours to say.
    replicas: Option<i32>,
    image: &'a str,
    /// Whether the pod template of the Deployment stays as it is.
    keeps_template: bool,
}

impl<'a> Desired<'a> {
    /// What the Foo `key` asks for.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] where it asks for nothing that could be.
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

    /// The same, but for the pod template, whose rollout has to wait.
    #[must_use]
    pub fn keeping_template(mut self) -> Self {
        self.keeps_template = true;
        self
    }

    /// Whether the pod template stays as it is.
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

    /// What puts the Deployment of that name right, as a strategic merge patch of just the fields that
    /// differ; `None` where none does, or where it is on its way out and can only be
    /// waited for.
    ///
    /// # Errors
    /// [`Error::ResourceExists`] where this Foo does not control it (invariant I5).
    pub fn difference(&self, actual: &Deployment) -> Result<Option<Value>, Error> {
        let owner = actual.owner.as_ref();
        if owner.is_none_or(|owner| *owner.uid != *self.foo_uid) {
            let name = self.key.name().to_owned();
            return Err(Error::ResourceExists(name, self.adoption(actual)));
        }
        if actual.deleting {
            return Ok(None);
        }
        Ok(self.patch(actual))
    }

    /// How to give the Foo a Deployment that the controller made for a Foo of this name, and that nothing controls; else empty.
    /// The selector cannot be changed afterwards.
    fn adoption(&self, actual: &Deployment) -> String {
        let labels = [&actual.labels, &actual.selector, &actual.pod_labels];
        if !actual.orphaned || labels.iter().any(|labels| ***labels != self.labels) {
            return String::new();
        }
        // By the UID of an owner: other owners stay.
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

    /// The [difference](Self::difference), for a Deployment that is known to be this Foo's.
    #[must_use]
    pub fn plan(&self, actual: &Snapshot<Deployment>) -> Option<Value> {
        self.difference(&actual.view).ok().flatten()
    }

    /// The same Foo, for its Deployment of an earlier name, of which only the replicas still count.
    #[must_use]
    pub fn of_earlier(&self, key: Key) -> Self {
        Self {
            key,
            ..self.clone()
        }
    }

    /// The patch that scales the Deployment of an earlier name, which serves until the new one is available.
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

    /// Whether the Deployment names a newer generation of the Foo than this one (invariant I7). Then the cache is behind, and
    /// must not undo what the newer Foo asked for; or somebody has edited the annotation.
    #[must_use]
    pub fn is_behind(&self, actual: &Deployment) -> bool {
        let made_from = actual.foo_generation;
        made_from.is_some_and(|generation| generation > self.generation)
    }

    /// The Deployment, new. Where the Foo does not say how many replicas, it begins with as many as the
    /// Deployment that it replaces.
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

    /// What it is made from (invariant I7).
    fn annotations(&self) -> [(&'static str, String); 2] {
        let made_for = made_for(self.foo_uid, self.key.name());
        [
            (GENERATION_ANNOTATION, self.generation.to_string()),
            (MADE_FOR_ANNOTATION, made_for),
        ]
    }

    /// What somebody added beside our fields stays.
    fn patch(&self, actual: &Deployment) -> Option<Value> {
        // Taken apart without `..`: a field that is kept must be compared, or not, on purpose.
        let Deployment {
            uid: _,
            owner: _,
            deleting: _,
            generation: _,
            foo_generation: _,
            labels,
            // Immutable: what the API server accepted at the creation stays.
            selector: _,
            // Of the template.
            pod_labels: _,
            image: _,
            replicas,
            // A person's, who resumes it.
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
