//! Objects for unit tests, as minimal YAML.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use operator_runtime::{Cached, Object};

use super::cached::{Deployment, Foo, made_for};

/// Parses an object from YAML.
pub fn object<V: Cached>(yaml: &str) -> Object<V> {
    let options = serde_saphyr::options! { strict_booleans: true };
    let value: serde_json::Value = serde_saphyr::from_str_with_options(yaml, options).unwrap();
    serde_json::from_str(&value.to_string()).unwrap()
}

/// The Foo `default/foo` at generation 2, which specifies the Deployment `web` with three replicas.
pub fn foo() -> Object<Foo> {
    object(
        "
        metadata: {name: foo, namespace: default, uid: foo-uid, resourceVersion: '7', generation: 2}
        spec: {deploymentName: web, replicas: 3}",
    )
}

/// The Deployment of the fixture Foo, in its desired state and with all pods available.
pub fn deployment() -> Object<Deployment> {
    let text = "
        metadata:
          name: web
          namespace: default
          uid: web-uid
          resourceVersion: '9'
          generation: 4
          labels: {app: nginx, controller: foo}
          annotations:
            samplecontroller.k8s.io/foo-generation: '2'
            samplecontroller.k8s.io/made-for: MADE-FOR
          ownerReferences:
          - {apiVersion: samplecontroller.k8s.io/v1alpha1, kind: Foo, name: foo, uid: foo-uid, controller: true}
        spec:
          replicas: 3
          selector: {matchLabels: {app: nginx, controller: foo}}
          template:
            metadata: {labels: {app: nginx, controller: foo}}
            spec: {containers: [{name: nginx, image: 'nginx:latest'}]}
        status: {observedGeneration: 4, replicas: 3, updatedReplicas: 3, availableReplicas: 3}";
    object(&text.replace("MADE-FOR", &made_for("foo-uid", "web")))
}
