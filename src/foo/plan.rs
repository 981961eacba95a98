//! The desired Deployment of a Foo. Pure functions without a client.

use serde_json::{Value, json};

use operator_runtime::{Key, Snapshot, owner_reference};

use super::{
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
    /// The Foo's key.
    foo_key: &'a Key,
    /// The Foo.
    foo: &'a Foo,
    /// The labels of the Deployment, its selector and its pods.
    labels: Labels,
    /// `None`: not controlled by the Foo.
    pub replicas: Option<i32>,
    image: &'a str,
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
            foo_key: key,
            foo,
            labels: Labels {
                app: Some("nginx".into()),
                controller: Some(key.name().into()),
            },
            replicas: spec.replicas,
            image,
        })
    }

    /// Returns the fields that are compared and corrected. `is_behind`: see [`is_behind`](Self::is_behind).
    #[must_use]
    pub fn fields(&self, is_behind: bool) -> Value {
        let labels = json!(self.labels.to_map());
        let containers = json!([{ "name": CONTAINER, "image": self.image }]);
        let mut fields = json!({
            "metadata": { "labels": labels },
            "spec": {
                "template": { "metadata": { "labels": labels }, "spec": { "containers": containers } },
            },
        });
        if let Some(replicas) = self.replicas {
            fields["spec"]["replicas"] = replicas.into();
        }
        if is_behind {
            let generation = self.foo.generation.to_string();
            fields["metadata"]["annotations"][GENERATION_ANNOTATION] = generation.into();
        }
        fields
    }

    /// Returns further fields of a new Deployment. If the Foo does not specify replicas, they are copied from the `replaced`
    /// Deployment.
    pub fn initially(&self, replaced: Option<&Deployment>) -> impl Fn() -> Value + use<> {
        let replicas = self.replicas.or(replaced.map(|old| old.replicas));
        let labels = self.labels.clone();
        move || {
            let selector = json!({ "matchLabels": labels.to_map() });
            json!({ "spec": { "replicas": replicas, "selector": selector } })
        }
    }

    /// Returns the annotations of the Deployment `name` that identify the Foo and its generation.
    pub fn stamp(&self, name: &str) -> impl Fn() -> Value + use<> {
        let (generation, uid) = (self.foo.generation, self.foo.uid.clone());
        let name = name.to_owned();
        move || {
            let annotations = json!({
                GENERATION_ANNOTATION: generation.to_string(),
                MADE_FOR_ANNOTATION: made_for(&uid, &name),
            });
            json!({ "metadata": { "annotations": annotations } })
        }
    }

    /// Returns [`Error::ResourceExists`] if the Foo does not control the Deployment, or [`Error::Deleting`] if it will be gone.
    #[must_use]
    pub fn foreign(&self, actual: &Snapshot<Deployment>) -> Error {
        let owner = actual.owner.as_ref();
        let name = self.key.name().to_owned();
        // The garbage collector deletes the Deployment of an earlier Foo.
        let is_of_earlier = owner.is_some_and(|owner| owner.key.name() == self.foo_key.name());
        if actual.deleting || is_of_earlier {
            Error::Deleting(name)
        } else {
            Error::ResourceExists(name, self.adoption(actual))
        }
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
        let owner = owner_reference(self.foo_key, self.foo);
        let patch = json!({ "metadata": { "ownerReferences": [owner] } });
        format!(
            "; it was made for a Foo of this name. To give it to this Foo: kubectl patch deployment {} -n {} -p '{patch}'",
            self.key.name(),
            self.key.namespace(),
        )
    }

    /// Whether the Deployment names a newer generation of the Foo than the cached Foo has.
    ///
    /// Either the cache is behind, and must not revert the newer Foo's changes. Or a client has edited the annotation.
    #[must_use]
    pub fn is_behind(&self, actual: &Deployment) -> bool {
        let made_from = actual.foo_generation;
        made_from.is_some_and(|generation| generation > self.foo.generation)
    }
}

#[cfg(test)]
mod tests;
