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
    /// `None`: not ours to say (row A3).
    replicas: Option<i32>,
    image: &'a str,
}

impl<'a> Desired<'a> {
    /// What the Foo `key` asks for.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] where it asks for nothing that could be (row R7).
    pub fn of(key: &'a Key, foo: &'a Foo, image: &'a str) -> Result<Self, Error> {
        let spec = foo
            .spec
            .as_ref()
            .map_err(|complaint| Error::InvalidSpec(complaint.to_string()))?;
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
        })
    }

    /// What puts the Deployment of that name right, as a strategic merge patch of just the fields that
    /// differ (rows R3 and R6); `None` where none does, or where it is on its way out and can only be
    /// waited for.
    ///
    /// # Errors
    /// [`Error::ResourceExists`] where this Foo does not control it (row R4, invariant I5).
    pub fn difference(&self, actual: &Deployment) -> Result<Option<Value>, Error> {
        let owner = actual.owner.as_ref();
        if owner.is_none_or(|owner| *owner.uid != *self.foo_uid) {
            return Err(Error::ResourceExists(self.key.name().to_owned()));
        }
        if actual.deleting {
            return Ok(None);
        }
        Ok(self.patch(actual))
    }

    /// The same, for a Deployment that is known to be this Foo's.
    #[must_use]
    pub fn plan(&self, actual: &Snapshot<Deployment>) -> Option<Value> {
        self.difference(&actual.view).ok().flatten()
    }

    /// Whether the Deployment names a newer generation of the Foo than this one (invariant I7). Then the cache is behind, and
    /// must not undo what the newer Foo asked for; or somebody has edited the annotation.
    #[must_use]
    pub fn is_behind(&self, actual: &Deployment) -> bool {
        let made_from = actual.foo_generation;
        made_from.is_some_and(|generation| generation > self.generation)
    }

    /// The Deployment, new (rows R1 and R2). Where the Foo does not say how many replicas, it begins with as many as the
    /// Deployment that it replaces (row R11).
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
                owner_references: Some(vec![OwnerReference {
                    api_version: api::api_version(),
                    kind: api::KIND.to_owned(),
                    name: self.foo_name.to_owned(),
                    uid: self.foo_uid.to_owned(),
                    controller: Some(true),
                    block_owner_deletion: Some(true),
                }]),
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
            pod_labels,
            image,
            replicas,
            progress: _,
        } = actual;
        let mut spec = json!({});
        let mut metadata = json!({});
        if let Some(wanted) = self.replicas.filter(|wanted| wanted != replicas) {
            spec["replicas"] = wanted.into();
        }
        if image.as_deref() != Some(self.image) {
            spec["template"]["spec"]["containers"] =
                json!([{ "name": CONTAINER, "image": self.image }]);
        }
        if **pod_labels != self.labels {
            spec["template"]["metadata"]["labels"] = json!(self.labels.to_map());
        }
        if **labels != self.labels {
            metadata["labels"] = json!(self.labels.to_map());
        }
        if spec == json!({}) && metadata == json!({}) && !self.is_behind(actual) {
            return None;
        }
        for (name, value) in self.annotations() {
            metadata["annotations"][name] = value.into();
        }
        Some(json!({ "metadata": metadata, "spec": spec }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use super::*;
    use crate::foo::fixtures::{deployment, foo};
    use operator_runtime::{Failure as _, Object, Retry};

    /// What the fixture Foo finds wrong with this Deployment.
    fn difference(actual: &Object<Deployment>) -> Result<Option<Value>, Error> {
        let foo = foo();
        let desired = Desired::of(&foo.key, &foo.view, "nginx:latest").unwrap();
        desired.difference(&actual.view)
    }

    fn patch(actual: &Object<Deployment>) -> Value {
        difference(actual).unwrap().unwrap()
    }

    /// Rows R1 and R2, and the generation of invariant I7.
    #[test]
    fn a_new_deployment_is_as_the_foo_says() {
        let foo = foo();
        let desired = Desired::of(&foo.key, &foo.view, "nginx:1").unwrap();
        let manifest = desired.manifest(None);
        let expected: Manifest = serde_saphyr::from_str(
            "
            metadata:
              name: web
              namespace: default
              labels: {app: nginx, controller: foo}
              annotations:
                samplecontroller.k8s.io/foo-generation: '2'
                samplecontroller.k8s.io/made-for: 183fc5f534cdc963
              ownerReferences:
              - apiVersion: samplecontroller.k8s.io/v1alpha1
                kind: Foo
                name: foo
                uid: foo-uid
                controller: true
                blockOwnerDeletion: true
            spec:
              replicas: 3
              selector: {matchLabels: {app: nginx, controller: foo}}
              template:
                metadata: {labels: {app: nginx, controller: foo}}
                spec: {containers: [{name: nginx, image: 'nginx:1'}]}",
        )
        .unwrap();
        assert_eq!(manifest, expected);
        let said = desired.manifest(Some(&deployment().view)).spec.unwrap();
        assert_eq!(said.replicas, Some(3), "the Foo says how many");
    }

    /// Row A3.
    #[test]
    fn without_replicas_the_deployments_replicas_are_left_alone() {
        let mut foo = foo();
        foo.view.spec.as_mut().unwrap().replicas = None;
        let desired = Desired::of(&foo.key, &foo.view, "nginx:latest").unwrap();
        let manifest = desired.manifest(None);
        assert_eq!(manifest.spec.unwrap().replicas, None);
        let mut scaled = deployment();
        scaled.view.replicas = 9;
        assert_eq!(desired.difference(&scaled.view).unwrap(), None);
    }

    /// Invariant I6.
    #[test]
    fn nothing_differs_nothing_is_written() {
        assert_eq!(difference(&deployment()).unwrap(), None);
    }

    /// Rows R3 and R6: just the fields that differ, based on what was seen.
    #[test]
    fn what_differs_is_put_right() {
        let metadata = |more: Value| {
            let mut metadata = json!({
                "annotations": { GENERATION_ANNOTATION: "2", MADE_FOR_ANNOTATION: made_for("foo-uid", "web") },
            });
            metadata
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            metadata
        };
        let labels = json!({ "app": "nginx", "controller": "foo" });

        let mut actual = deployment();
        actual.view.replicas = 5;
        assert_eq!(
            patch(&actual),
            json!({ "metadata": metadata(json!({})), "spec": { "replicas": 3 } })
        );

        let mut actual = deployment();
        actual.view.image = Some("evil".into());
        let containers = json!([{ "name": "nginx", "image": "nginx:latest" }]);
        let template = json!({ "template": { "spec": { "containers": containers } } });
        assert_eq!(
            patch(&actual),
            json!({ "metadata": metadata(json!({})), "spec": template })
        );

        let mut actual = deployment();
        Arc::make_mut(&mut actual.view.labels).app = None;
        assert_eq!(
            patch(&actual),
            json!({ "metadata": metadata(json!({ "labels": labels })), "spec": {} })
        );

        let mut actual = deployment();
        Arc::make_mut(&mut actual.view.pod_labels).controller = Some("other".into());
        let template = json!({ "template": { "metadata": { "labels": labels } } });
        assert_eq!(
            patch(&actual),
            json!({ "metadata": metadata(json!({})), "spec": template })
        );
    }

    /// Rows A3 and R11: where the Foo leaves the replicas alone, a rename does, too.
    #[test]
    fn a_renamed_deployment_starts_with_the_replicas_of_the_old_one() {
        let mut foo = foo();
        foo.view.spec.as_mut().unwrap().replicas = None;
        let desired = Desired::of(&foo.key, &foo.view, "i").unwrap();
        let replicas = |old: Option<&Deployment>| desired.manifest(old).spec.unwrap().replicas;
        assert_eq!(replicas(None), None);
        let mut old = deployment().view;
        for scaled in [10, 0] {
            old.replicas = scaled;
            assert_eq!(replicas(Some(&old)), Some(scaled));
        }
    }

    /// Row R4, invariants I4 and I5: by UID, not by name.
    #[test]
    fn a_deployment_of_somebody_else_is_never_touched() {
        let mut actual = deployment();
        actual.view.replicas = 5;
        actual.view.owner = None;
        let error = difference(&actual).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Resource \"web\" already exists and is not managed by Foo"
        );
        assert_eq!(error.reason(), Some("ErrResourceExists"));

        let mut actual = deployment();
        actual.view.owner.as_mut().unwrap().uid = "an-earlier-foo".into();
        assert!(matches!(difference(&actual), Err(Error::ResourceExists(_))));
    }

    /// A Deployment that is on its way out cannot be put right; when it is gone, a new one is made.
    #[test]
    fn a_deployment_being_deleted_is_waited_for() {
        let mut actual = deployment();
        actual.view.replicas = 5;
        actual.view.deleting = true;
        assert_eq!(difference(&actual).unwrap(), None);
    }

    /// Invariant I7: a newer generation than the Foo's is seen, and put right where nothing else is wrong.
    #[test]
    fn a_newer_generation_is_a_difference() {
        let foo = foo();
        let desired = Desired::of(&foo.key, &foo.view, "nginx:latest").unwrap();
        let mut actual = deployment();
        actual.view.foo_generation = Some(3);
        assert!(desired.is_behind(&actual.view));
        let patch = patch(&actual);
        let annotations = &patch["metadata"]["annotations"];
        assert_eq!(annotations[GENERATION_ANNOTATION], "2");
        assert_eq!(patch["spec"], json!({}));
        for generation in [Some(2), Some(1), None] {
            actual.view.foo_generation = generation;
            assert!(!desired.is_behind(&actual.view));
            assert_eq!(difference(&actual).unwrap(), None);
        }
    }

    /// Row R7.
    #[test]
    fn a_foo_that_asks_for_nothing_possible_is_invalid() {
        let mut empty = foo();
        empty.view.spec.as_mut().unwrap().deployment_name.clear();
        let error = Desired::of(&empty.key, &empty.view, "i").unwrap_err();
        assert_eq!(error.retry(), Retry::OnChange);
        assert_eq!(error.to_string(), "spec.deploymentName: must not be empty");

        let mut stored_before_the_schema = foo();
        stored_before_the_schema
            .view
            .spec
            .as_mut()
            .unwrap()
            .replicas = Some(11);
        let key = &stored_before_the_schema.key;
        let error = Desired::of(key, &stored_before_the_schema.view, "i").unwrap_err();
        assert_eq!(error.to_string(), "spec.replicas: must be 1 to 10, not 11");

        let mut undecodable = foo();
        undecodable.view.spec = Err("spec: invalid type".into());
        let error = Desired::of(&undecodable.key, &undecodable.view, "i").unwrap_err();
        assert_eq!(error.retry(), Retry::OnChange);
    }
}
