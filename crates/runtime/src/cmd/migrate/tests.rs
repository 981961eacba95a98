#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{convert::Infallible, sync::Arc};

use http::{Method, Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;

const OBJECTS: usize = 100;

/// Each object is rewritten once, at most 20 of them in a second.
#[tokio::test(start_paused = true)]
async fn at_most_twenty_objects_are_rewritten_in_a_second() {
    let versions = ["v1", "v1alpha1"].map(|name| {
        let schema = json!({ "openAPIV3Schema": { "type": "object" } });
        json!({ "name": name, "served": true, "storage": name == "v1", "schema": schema })
    });
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "jobs.example.com", "uid": "c", "resourceVersion": "1", "generation": 1 },
        "spec": {
            "group": "example.com",
            "names": { "kind": "Job", "plural": "jobs" },
            "scope": "Namespaced",
            "versions": versions,
        },
        "status": {
            "storedVersions": ["v1alpha1", "v1"],
            "conditions": [],
            "acceptedNames": { "kind": "Job", "plural": "jobs" },
        },
    });
    let definition: CustomResourceDefinition = serde_json::from_value(crd.clone()).unwrap();
    let writes = Arc::<Mutex<Vec<Instant>>>::default();
    let noted = Arc::clone(&writes);
    let service = tower::service_fn(move |request: Request<Body>| {
        let object = |number: usize| {
            let metadata = json!({ "name": format!("j{number}"), "namespace": "n", "uid": "u", "resourceVersion": "1" });
            json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata })
        };
        let answer = match (request.method(), request.uri().path()) {
            (_, path) if path.contains("/customresourcedefinitions/") => crd.clone(),
            (&Method::PATCH, _) => {
                noted.lock().push(Instant::now());
                object(0)
            }
            _ => {
                let items: Vec<_> = (0..OBJECTS).map(object).collect();
                json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items })
            }
        };
        let answer = Response::new(Body::from(answer.to_string().into_bytes()));
        async move { Ok::<_, Infallible>(answer) }
    });
    let client = Client::new(service, "default");
    migrate(&client, &[definition.into()]).await.unwrap();
    let writes = writes.lock();
    assert_eq!(writes.len(), OBJECTS);
    let least = writes.windows(21).map(|it| it[20] - it[0]).min();
    assert_eq!(least, Some(Duration::from_secs(1)));
}
