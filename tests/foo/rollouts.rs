//! The limit on concurrent rollouts, with the real Deployment controller.

use std::collections::BTreeMap;

use operator_testkit::cluster::eventually;
use serde_json::{Value, json};

use crate::foo::scenarios::{DEADLINE, Scene, condition, foo};

const FOOS: usize = 12;
const LIMIT: usize = 3;
const NEXT: &str = "nginx:next";

impl Scene {
    async fn foos(&self) -> BTreeMap<String, Value> {
        let list = self.get("foos").await;
        let items = list["items"].as_array().unwrap().iter();
        let named = items.map(|foo| {
            (
                foo["metadata"]["name"].as_str().unwrap().to_owned(),
                foo.clone(),
            )
        });
        named.collect()
    }

    /// Returns the names of the Deployments with the new image.
    async fn with_next_image(&self) -> Vec<String> {
        let list = self.get("deployments").await;
        let mut items = list["items"].as_array().unwrap().clone();
        items.retain(|one| one["spec"]["template"]["spec"]["containers"][0]["image"] == NEXT);
        let names = items.iter().map(|one| one["metadata"]["name"].as_str());
        names.map(|name| name.unwrap().to_owned()).collect()
    }

    /// Assigns a node port to the pods of the Deployment, or removes it. With a port, a rollout blocks: the new pod waits for
    /// the port of the old pod, and the old pod stays until the new one is ready.
    async fn take_port(&self, name: &str, port: Option<usize>) {
        let ports = match port {
            Some(port) => json!([{ "containerPort": 80, "hostPort": port }]),
            None => Value::Null,
        };
        let container = json!({ "name": "nginx", "ports": ports });
        let patch = json!({ "spec": { "template": { "spec": { "containers": [container] } } } });
        self.kubectl(&["patch", "deployment", name, "-p", &patch.to_string()])
            .await;
    }

    /// Waits until `count` Deployments have the new image, and the others wait. Fails if more than `count` have it.
    async fn rolls_out(&self, count: usize) {
        eventually(DEADLINE, "as many as may roll out do", async || {
            let next = self.with_next_image().await;
            assert!(next.len() <= count, "{next:?}");
            let foos = self.foos().await;
            let queued = foos.values().filter(|foo| {
                condition(foo, "Progressing")["reason"] == "RolloutQueued"
                    && condition(foo, "Ready")["status"] == "True"
            });
            match (next.len(), queued.count()) {
                (rolling, queued) if rolling == count && queued == FOOS - count => Ok(()),
                counts => Err(counts),
            }
        })
        .await;
    }
}

/// The image changes, but its pods do not start: three of twelve Foos roll out. The others stay Ready and can be scaled. One of
/// them starts as soon as a rollout completes.
#[tokio::test]
async fn r12_another_image_rolls_out_a_few_foos_concurrently() {
    let mut scene = Scene::new("rollouts").await;
    let names: Vec<_> = (0..FOOS).map(|n| format!("f{n:02}")).collect();
    for name in &names {
        let spec = json!({ "deploymentName": name, "replicas": 1 });
        scene.apply(&foo(name, &spec)).await;
    }
    for (number, name) in names.iter().enumerate() {
        scene.wait(&format!("foo/{name}"), "condition=Ready").await;
        scene.take_port(name, Some(21_000 + number)).await;
    }
    for name in &names {
        scene
            .kubectl(&["rollout", "status", "deployment", name])
            .await;
        scene.wait(&format!("foo/{name}"), "condition=Ready").await;
    }

    let limit = format!("--max-rollouts={LIMIT}");
    scene.upgrade_with(NEXT, &[&limit]).await;
    scene.rolls_out(LIMIT).await;

    let next = scene.with_next_image().await;
    let queued = names.iter().find(|name| !next.contains(name)).unwrap();
    // Both pods need the same port, so only one starts.
    for replicas in [2, 1] {
        let count = format!("--replicas={replicas}");
        scene
            .kubectl(&["scale", &format!("foo/{queued}"), &count])
            .await;
        let is_scaled = format!("jsonpath={{.spec.replicas}}={replicas}");
        scene
            .wait(&format!("deployment/{queued}"), &is_scaled)
            .await;
    }
    scene.rolls_out(LIMIT).await;

    scene.take_port(&next[0], None).await;
    let done = format!("foo/{}", next[0]);
    scene.wait(&done, "condition=Ready").await;
    scene.rolls_out(LIMIT + 1).await;

    for name in &names {
        scene.take_port(name, None).await;
    }
    for name in &names {
        let image = format!("jsonpath={{.spec.template.spec.containers[0].image}}={NEXT}");
        scene.wait(&format!("deployment/{name}"), &image).await;
        let complete = "condition=Progressing=false";
        scene.wait(&format!("foo/{name}"), complete).await;
        scene.wait(&format!("foo/{name}"), "condition=Ready").await;
    }
}
