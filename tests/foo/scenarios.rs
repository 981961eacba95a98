//! The user's view with kubectl on a control plane whose Deployments have pods: the seven scenarios, and the rows that need
//! such a control plane.
//!
//! Each test has its own namespace and controller. Resyncs and retries are longer than the tests' deadlines, so that every
//! reaction is caused by a watch.

use std::time::Duration;

use operator_testkit::cluster::{Output, eventually};
use serde_json::{Value, json};

use crate::support::{controller::Controller, foos::with_pods};

pub const DEADLINE: Duration = Duration::from_mins(1);

/// Foo `foo-sample`, deploymentName `foo-sample`, replicas 1.
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/samples/foo.yaml");

/// A namespace and its controller.
pub struct Scene {
    pub namespace: String,
    controller: Controller,
}

impl Scene {
    pub async fn new(name: &str) -> Self {
        static CRD: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
        CRD.get_or_init(async || {
            // kubectl caches discovery for hours. This list forces a new discovery.
            let fresh = ["api-resources", "--api-group=samplecontroller.k8s.io"];
            eventually(DEADLINE, "Foos are discovered", async || {
                let found = with_pods().await.kubectl(&fresh).await.success();
                found.contains("foos").then_some(()).ok_or(found)
            })
            .await;
        })
        .await;
        let namespace = with_pods().await.namespace(name).await;
        let controller = Self::start(&namespace, "nginx:latest", &[]).await;
        Self {
            namespace,
            controller,
        }
    }

    async fn start(namespace: &str, image: &str, more: &[&str]) -> Controller {
        let rare = ["--resync=1h", "--backoff-initial=1h", "--backoff-max=1h"];
        let args = [
            &rare[..],
            &["--namespace", namespace, "--image", image],
            more,
        ];
        Controller::start(with_pods().await, &args.concat())
    }

    /// Restarts the controller with another image for Deployments.
    pub async fn upgrade(&mut self, image: &str) {
        self.upgrade_with(image, &[]).await;
    }

    /// Like [`Self::upgrade`], with more arguments.
    pub async fn upgrade_with(&mut self, image: &str, more: &[&str]) {
        assert_eq!(self.controller.stop().await, 0);
        self.controller = Self::start(&self.namespace, image, more).await;
    }

    /// Applies the sample, and waits until it is Ready.
    pub async fn with_sample(name: &str) -> Self {
        let scene = Self::new(name).await;
        scene.kubectl(&["apply", "-f", SAMPLE]).await;
        scene.wait("foo/foo-sample", "condition=Ready").await;
        scene
    }

    pub async fn try_kubectl(&self, args: &[&str], input: &str) -> Output {
        let args = [&["--namespace", &self.namespace], args].concat();
        with_pods().await.kubectl_stdin(&args, input).await
    }

    /// Deletes a quota, and lets the `ReplicaSet`s notice. Their controller retries with growing pauses, but reconciles a changed
    /// `ReplicaSet` at once. kubectl fails if a `ReplicaSet` is deleted between the list and its patch, and is run again.
    pub async fn lift_quota(&self, name: &str) {
        self.kubectl(&["delete", "quota", name]).await;
        let lifted = [
            "annotate",
            "replicasets",
            "--all",
            "--overwrite",
            &format!("lifted={name}"),
        ];
        eventually(DEADLINE, "all ReplicaSets are annotated", async || {
            let output = self.try_kubectl(&lifted, "").await;
            if output.status.success() {
                Ok(())
            } else {
                Err(output)
            }
        })
        .await;
    }

    pub async fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args, "").await.success()
    }

    pub async fn apply(&self, manifest: &Value) {
        self.try_kubectl(&["apply", "-f", "-"], &manifest.to_string())
            .await
            .success();
    }

    /// Runs `kubectl wait`, also for an object that does not exist yet.
    pub async fn wait(&self, what: &str, condition: &str) {
        let timeout = format!("--timeout={}s", DEADLINE.as_secs());
        if condition != "delete" {
            self.kubectl(&["wait", what, "--for=create", &timeout])
                .await;
        }
        self.kubectl(&["wait", what, &format!("--for={condition}"), &timeout])
            .await;
    }

    pub async fn get(&self, what: &str) -> Value {
        let json = self.kubectl(&["get", what, "-o", "json"]).await;
        serde_json::from_str(&json).unwrap()
    }

    pub async fn patch_foo(&self, spec: Value) {
        let patch = json!({ "spec": spec }).to_string();
        self.kubectl(&["patch", "foo", "foo-sample", "--type=merge", "-p", &patch])
            .await;
    }

    /// Waits for events of Foos with this reason.
    pub async fn events(&self, reason: &str) -> Vec<Value> {
        let selector = format!("--field-selector=involvedObject.kind=Foo,reason={reason}");
        let args = ["get", "event", &selector, "-o", "json"];
        eventually(DEADLINE, "an event", async || {
            let list: Value = serde_json::from_str(&self.kubectl(&args).await).unwrap();
            let items = list["items"].as_array().unwrap().clone();
            if items.is_empty() {
                Err(list)
            } else {
                Ok(items)
            }
        })
        .await
    }
}

pub fn foo(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1",
        "kind": "Foo",
        "metadata": { "name": name },
        "spec": spec,
    })
}

pub fn condition<'a>(object: &'a Value, type_: &str) -> &'a Value {
    let all = object["status"]["conditions"].as_array().unwrap();
    all.iter().find(|one| one["type"] == type_).unwrap()
}

#[tokio::test]
async fn r1_r2_foo_gets_a_deployment_that_is_deleted_with_it() {
    let scene = Scene::with_sample("one").await;
    let foo = scene.get("foo/foo-sample").await;
    let deployment = scene.get("deployment/foo-sample").await;
    let owner = json!([{
        "apiVersion": "samplecontroller.k8s.io/v1alpha1",
        "kind": "Foo",
        "name": "foo-sample",
        "uid": foo["metadata"]["uid"],
        "controller": true,
        "blockOwnerDeletion": true,
    }]);
    let labels = json!({ "app": "nginx", "controller": "foo-sample" });
    let (metadata, spec) = (&deployment["metadata"], &deployment["spec"]);
    assert_eq!(metadata["ownerReferences"], owner);
    assert_eq!(metadata["labels"], labels);
    assert_eq!(spec["selector"]["matchLabels"], labels);
    assert_eq!(spec["template"]["metadata"]["labels"], labels);
    assert_eq!(spec["replicas"], 1);
    let [container] = &spec["template"]["spec"]["containers"].as_array().unwrap()[..] else {
        panic!("one container: {spec}")
    };
    assert_eq!(
        (&container["name"], &container["image"]),
        (&json!("nginx"), &json!("nginx:latest"))
    );

    scene.kubectl(&["delete", "foo", "foo-sample"]).await;
    scene.wait("deployment/foo-sample", "delete").await;
}

/// The Deployment follows the replicas of its Foo.
#[tokio::test]
async fn r3_deployment_follows_the_replicas() {
    let scene = Scene::with_sample("two").await;
    scene.patch_foo(json!({ "replicas": 2 })).await;
    scene
        .wait("deployment/foo-sample", "jsonpath={.spec.replicas}=2")
        .await;
}

/// Backoff and resync are an hour, so only the deletion can cause the recovery.
#[tokio::test]
async fn r4a_r4b_foreign_deployment_is_left_alone_until_it_is_deleted() {
    let scene = Scene::new("three").await;
    scene
        .kubectl(&["create", "deployment", "foo-sample", "--image=theirs"])
        .await;
    scene
        .wait("deployment/foo-sample", "condition=Available")
        .await;
    let before = scene.get("deployment/foo-sample").await;

    scene.kubectl(&["apply", "-f", SAMPLE]).await;
    let events = scene.events("ErrResourceExists").await;
    assert_eq!(events[0]["type"], "Warning");
    let message = "Resource \"foo-sample\" already exists and is not managed by Foo";
    assert_eq!(events[0]["message"], message);
    scene.wait("foo/foo-sample", "condition=Ready=False").await;
    let foo = scene.get("foo/foo-sample").await;
    assert_eq!(condition(&foo, "Ready")["reason"], "ErrResourceExists");
    assert_eq!(condition(&foo, "Ready")["message"], message);
    assert_eq!(before, scene.get("deployment/foo-sample").await);

    scene.kubectl(&["delete", "deployment", "foo-sample"]).await;
    scene.wait("foo/foo-sample", "condition=Ready").await;
    let after = scene.get("deployment/foo-sample").await;
    assert_eq!(
        after["metadata"]["ownerReferences"][0]["uid"],
        foo["metadata"]["uid"]
    );
}

#[tokio::test]
async fn a5a_r5_status_counts_available_replicas() {
    let scene = Scene::with_sample("four").await;
    let status = ["get", "foo", "foo-sample", "-o", "jsonpath={.status}"];
    let read = async || serde_json::from_str::<Value>(&scene.kubectl(&status).await).unwrap();
    assert_eq!(read().await["availableReplicas"], 1);
    scene.patch_foo(json!({ "replicas": 2 })).await;
    scene
        .wait("foo/foo-sample", "jsonpath={.status.availableReplicas}=2")
        .await;
    scene.wait("foo/foo-sample", "condition=Ready").await;
    let status = read().await;
    assert_eq!(status["replicas"], 2);
    assert_eq!(status["observedGeneration"], 2);
    assert_eq!(status["selector"], "app=nginx,controller=foo-sample");
    assert_eq!(status["deploymentName"], "foo-sample");
}

#[tokio::test]
async fn r6a_manual_changes_are_reverted() {
    let scene = Scene::with_sample("five").await;
    let name = "deployment/foo-sample";
    scene.kubectl(&["scale", name, "--replicas=5"]).await;
    scene.wait(name, "jsonpath={.spec.replicas}=1").await;
    scene.kubectl(&["set", "image", name, "nginx=theirs"]).await;
    let image = "jsonpath={.spec.template.spec.containers[0].image}=nginx:latest";
    scene.wait(name, image).await;
    scene
        .kubectl(&["label", name, "app=theirs", "--overwrite"])
        .await;
    scene
        .wait(name, "jsonpath={.metadata.labels.app}=nginx")
        .await;
    scene.kubectl(&["delete", name]).await;
    scene.wait(name, "condition=Available").await;
}

#[tokio::test]
async fn r9_synced_event_is_written() {
    let scene = Scene::with_sample("six").await;
    let events = scene.events("Synced").await;
    assert_eq!(events[0]["type"], "Normal");
    assert_eq!(events[0]["message"], "Foo synced successfully");
    assert_eq!(events[0]["reportingComponent"], "sample-controller");
    let table = scene
        .kubectl(&["get", "event", "--field-selector=involvedObject.kind=Foo"])
        .await;
    assert!(table.contains("foo/foo-sample"), "{table}");
}

/// The API server rejects an invalid Foo, and names the field. Other Foos are not affected.
#[tokio::test]
async fn a2_a4_invalid_foo_is_rejected_by_field_and_delays_no_other() {
    let scene = Scene::new("seven").await;
    let spec =
        |name: &str, replicas: Value| json!({ "deploymentName": name, "replicas": replicas });
    let long = "d".repeat(64);
    let bad = [
        ("bad", spec("d", json!(0)), "spec.replicas"),
        ("bad", spec("d", json!(11)), "spec.replicas"),
        ("bad", spec("d", json!(-1)), "spec.replicas"),
        ("bad", spec("d", json!("two")), "spec.replicas"),
        ("bad", spec("d", json!(2_147_483_648_i64)), "spec.replicas"),
        ("bad", spec(&long, json!(1)), "spec.deploymentName"),
        ("bad", spec("Capitals", json!(1)), "spec.deploymentName"),
        ("bad", spec("a/slash", json!(1)), "spec.deploymentName"),
        (&*long, spec("d", json!(1)), "metadata.name"),
        (
            "bad",
            json!({ "deploymentName": "d", "replica": 1 }),
            "spec.replica\"",
        ),
        ("bad", json!({ "replicas": 1 }), "spec.deploymentName"),
    ];
    for (number, (name, spec, field)) in bad.iter().enumerate() {
        let manifest = foo(name, spec).to_string();
        let answer = scene.try_kubectl(&["apply", "-f", "-"], &manifest).await;
        assert!(!answer.status.success(), "taken: {manifest}");
        assert!(answer.stderr.contains(field), "{manifest}: {answer:?}");
        let good = format!("good-{number}");
        let spec = json!({ "deploymentName": good, "replicas": 1 });
        scene.apply(&foo(&good, &spec)).await;
    }
    // The maximum length and the maximum number.
    let longest = "l".repeat(63);
    scene
        .apply(&foo(&longest, &spec(&longest, json!(10))))
        .await;
    // Without kubectl's strict validation, the API server prunes unknown fields.
    let unknown = foo(
        "pruned",
        &json!({ "deploymentName": "pruned", "replica": 1 }),
    )
    .to_string();
    let lenient = ["apply", "--validate=false", "-f", "-"];
    scene.try_kubectl(&lenient, &unknown).await.success();
    let pruned = scene.get("foo/pruned").await;
    assert_eq!(pruned["spec"], json!({ "deploymentName": "pruned" }));
    let all = [
        "wait",
        "foo",
        "--all",
        "--for=condition=Ready",
        "--timeout=60s",
    ];
    let ready = scene.kubectl(&all).await;
    assert_eq!(ready.lines().count(), bad.len() + 2, "{ready}");
    let longest = scene.get(&format!("deployment/{longest}")).await;
    assert_eq!(longest["status"]["availableReplicas"], 10);
}

#[tokio::test]
async fn a1_a4_a7_kubectl_knows_foos() {
    let scene = Scene::with_sample("names").await;
    let words = async |args: &[&str]| {
        let table = scene.kubectl(args).await;
        let mut lines = table.lines().map(|line| {
            let words = line.split_whitespace();
            words.map(str::to_owned).collect::<Vec<_>>()
        });
        (lines.next().unwrap(), lines.next().unwrap())
    };
    let (head, row) = words(&["get", "fo"]).await;
    let columns = ["NAME", "DEPLOYMENT", "DESIRED", "AVAILABLE", "READY", "AGE"];
    assert_eq!(head, columns);
    assert_eq!(row[..5], ["foo-sample", "foo-sample", "1", "1", "True"]);
    let (head, row) = words(&["get", "foo", "-o", "wide"]).await;
    let reason = head.iter().position(|column| column == "REASON").unwrap();
    assert_eq!(row[reason], "DeploymentAvailable");
    let all = scene.kubectl(&["get", "all"]).await;
    assert!(
        all.contains("foo.samplecontroller.k8s.io/foo-sample"),
        "{all}"
    );
    for (field, says) in [
        (
            "foo.spec.replicas",
            "Number of pods of the Deployment, 1 to 10",
        ),
        (
            "foo.spec.deploymentName",
            "Name of the Deployment: lower case letters",
        ),
        (
            "foo.status.availableReplicas",
            "Number of pods that have been Ready",
        ),
    ] {
        // The API server publishes the schema after the resource.
        eventually(DEADLINE, field, async || {
            let output = scene.try_kubectl(&["explain", field], "").await;
            let said = output.stdout.contains(says);
            said.then_some(()).ok_or(output)
        })
        .await;
    }
}

#[tokio::test]
async fn a3_without_replicas_the_deployments_are_left_alone() {
    let scene = Scene::new("unset").await;
    scene
        .apply(&foo(
            "foo-sample",
            &json!({ "deploymentName": "foo-sample" }),
        ))
        .await;
    scene.wait("foo/foo-sample", "condition=Ready").await;
    let name = "deployment/foo-sample";
    scene.kubectl(&["scale", name, "--replicas=4"]).await;
    scene
        .wait("foo/foo-sample", "jsonpath={.status.availableReplicas}=4")
        .await;
    // A correction of another field does not change the replicas either.
    scene.kubectl(&["set", "image", name, "nginx=theirs"]).await;
    let image = "jsonpath={.spec.template.spec.containers[0].image}=nginx:latest";
    scene.wait(name, image).await;
    assert_eq!(scene.get(name).await["spec"]["replicas"], 4);
}

#[tokio::test]
async fn a6_a_foo_scales() {
    let scene = Scene::with_sample("scale").await;
    scene
        .kubectl(&["scale", "foo/foo-sample", "--replicas=3"])
        .await;
    scene
        .wait("deployment/foo-sample", "jsonpath={.spec.replicas}=3")
        .await;
    let target = json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1",
        "kind": "Foo",
        "name": "foo-sample",
    });
    scene
        .apply(&json!({
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": { "name": "foo-sample" },
            "spec": { "scaleTargetRef": target, "minReplicas": 4, "maxReplicas": 5 },
        }))
        .await;
    // The minimum needs no metrics.
    scene
        .wait("deployment/foo-sample", "jsonpath={.spec.replicas}=4")
        .await;
    assert_eq!(scene.get("foo/foo-sample").await["spec"]["replicas"], 4);
    scene.wait("foo/foo-sample", "condition=Ready").await;
    scene
        .wait("hpa/foo-sample", "condition=ScalingActive=False")
        .await;
    let hpa = scene.get("hpa/foo-sample").await;
    assert_eq!(hpa["status"]["currentReplicas"], 4);
    // No server provides metrics here. With a valid selector this is the only remaining error.
    assert_eq!(
        condition(&hpa, "ScalingActive")["reason"],
        "FailedGetResourceMetric"
    );
}

#[tokio::test]
async fn a8_the_status_is_the_controllers() {
    let scene = Scene::with_sample("status").await;
    let patch = r#"{"status": {"availableReplicas": 77}, "spec": {"replicas": 2}}"#;
    // This is the API server's response, before the controller could correct anything.
    let args = [
        "patch",
        "foo",
        "foo-sample",
        "--type=merge",
        "-o",
        "json",
        "-p",
    ];
    let answer = scene.kubectl(&[&args[..], &[patch]].concat()).await;
    let foo: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(foo["spec"]["replicas"], 2);
    assert_eq!(foo["status"]["availableReplicas"], 1);
}

/// With foreground deletion, the Foo is deleted last.
#[tokio::test]
async fn r2_the_deployment_is_deleted_before_its_foo() {
    let scene = Scene::with_sample("cascade").await;
    scene
        .kubectl(&[
            "delete",
            "foo",
            "foo-sample",
            "--cascade=foreground",
            "--timeout=1m",
        ])
        .await;
    let left = "deployments,replicasets,foos";
    assert_eq!(scene.kubectl(&["get", left, "-o", "name"]).await, "");
}

/// A finalizer delays the deletion of the Foo. Its deleted Deployment is not created again.
#[tokio::test]
async fn r8_a_foo_being_deleted_gets_no_deployment() {
    let scene = Scene::with_sample("deleting").await;
    let hold = r#"{"metadata": {"finalizers": ["example.com/hold"]}}"#;
    let patch = ["patch", "foo", "foo-sample", "--type=merge", "-p"];
    scene.kubectl(&[&patch[..], &[hold]].concat()).await;
    scene
        .kubectl(&["delete", "foo", "foo-sample", "--wait=false"])
        .await;
    scene.kubectl(&["delete", "deployment", "foo-sample"]).await;
    // This Foo is enqueued and reconciled after the other one.
    scene
        .apply(&foo("after", &json!({ "deploymentName": "after" })))
        .await;
    scene.wait("foo/after", "condition=Ready").await;
    let deployments = scene.kubectl(&["get", "deployments", "-o", "name"]).await;
    assert_eq!(deployments, "deployment.apps/after\n");
    let release = r#"{"metadata": {"finalizers": null}}"#;
    scene.kubectl(&[&patch[..], &[release]].concat()).await;
}

/// A Foo is deleted without its Deployment, which then has no owner. The next Foo does not adopt it.
#[tokio::test]
async fn r2_an_orphan_stays() {
    let scene = Scene::with_sample("orphan").await;
    scene
        .kubectl(&["delete", "foo", "foo-sample", "--cascade=orphan"])
        .await;
    let deployment = scene.get("deployment/foo-sample").await;
    assert_eq!(deployment["metadata"].get("ownerReferences"), None);
    scene.kubectl(&["apply", "-f", SAMPLE]).await;
    scene.events("ErrResourceExists").await;
}

/// A rename keeps the replicas of the old Deployment.
#[tokio::test]
async fn r11a_new_deployment_starts_with_the_replicas_of_the_old_one() {
    let scene = Scene::new("count").await;
    scene
        .apply(&foo("foo-sample", &json!({ "deploymentName": "old" })))
        .await;
    scene.wait("foo/foo-sample", "condition=Ready").await;
    scene
        .kubectl(&["scale", "deployment/old", "--replicas=4"])
        .await;
    scene
        .wait("foo/foo-sample", "jsonpath={.status.availableReplicas}=4")
        .await;
    scene.patch_foo(json!({ "deploymentName": "new" })).await;
    scene.wait("deployment/old", "delete").await;
    let new = scene.get("deployment/new").await;
    assert_eq!(new["spec"]["replicas"], 4);
    assert_eq!(new["metadata"]["generation"], 1, "from its creation on");
}

/// The Foo is renamed again before the second Deployment is available. Both old Deployments are deleted once the third one is
/// available. A user's copy, with the name replaced everywhere, is not deleted.
#[tokio::test]
async fn r11b_all_earlier_deployments_are_deleted_and_no_copy_of_one() {
    let scene = Scene::with_sample("chain").await;
    scene
        .kubectl(&["create", "quota", "one-pod", "--hard=pods=1"])
        .await;
    scene
        .wait("quota/one-pod", "jsonpath={.status.used.pods}=1")
        .await;
    scene.patch_foo(json!({ "deploymentName": "second" })).await;
    scene
        .wait("deployment/second", "condition=ReplicaFailure")
        .await;
    let mut copy = scene.get("deployment/second").await;
    for server_made in ["uid", "resourceVersion", "generation"] {
        copy["metadata"]
            .as_object_mut()
            .unwrap()
            .remove(server_made);
    }
    let copy = copy.to_string().replace("second", "second-debug");
    scene
        .try_kubectl(&["create", "-f", "-"], &copy)
        .await
        .success();
    scene.patch_foo(json!({ "deploymentName": "third" })).await;
    scene.wait("deployment/third", "create").await;
    scene.lift_quota("one-pod").await;
    scene.wait("deployment/foo-sample", "delete").await;
    scene.wait("deployment/second", "delete").await;
    scene
        .wait("foo/foo-sample", "jsonpath={.status.deploymentName}=third")
        .await;
    scene.wait("foo/foo-sample", "condition=Ready").await;
    let copy = scene.get("deployment/second-debug").await;
    assert_eq!(copy["metadata"].get("deletionTimestamp"), None);
}

/// A policy rejects the deletion of the old Deployment. The Foo stays Ready. When the policy is removed, the old Deployment is
/// deleted.
#[tokio::test]
async fn r11d_rejected_deletion_is_reported_by_a_ready_foo() {
    let scene = Scene::with_sample("kept").await;
    let name = &scene.namespace;
    let policy = json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": name },
            "spec": {
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": ["apps"],
                    "apiVersions": ["v1"],
                    "operations": ["DELETE"],
                    "resources": ["deployments"],
                }] },
                "validations": [{ "expression": "false", "message": "nothing goes" }],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name },
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": {
                    "matchLabels": { "kubernetes.io/metadata.name": name },
                } },
            },
        },
    ] });
    scene.apply(&policy).await;
    let dry = ["delete", "deployment", "foo-sample", "--dry-run=server"];
    let refused = async |expected: bool| {
        eventually(DEADLINE, "the policy is in force, or not", async || {
            let output = scene.try_kubectl(&dry, "").await;
            if output.status.success() == expected {
                Err(output)
            } else {
                Ok(())
            }
        })
        .await;
    };
    refused(true).await;
    scene.patch_foo(json!({ "deploymentName": "new" })).await;
    let warnings = scene.events("DeletionFailed").await;
    assert_eq!(warnings[0]["type"], "Warning");
    scene.wait("foo/foo-sample", "condition=Ready").await;
    let foo = scene.get("foo/foo-sample").await;
    let progressing = condition(&foo, "Progressing");
    assert_eq!(progressing["reason"], "DeletionFailed");
    let message = progressing["message"].as_str().unwrap();
    assert!(message.contains("nothing goes"), "{message}");
    assert_eq!(foo["status"]["availableReplicas"], 1);

    scene
        .try_kubectl(&["delete", "-f", "-"], &policy.to_string())
        .await
        .success();
    refused(false).await;
    // A change of the Foo, because the backoff is an hour.
    scene.patch_foo(json!({ "replicas": 2 })).await;
    scene.wait("deployment/foo-sample", "delete").await;
    scene
        .wait("foo/foo-sample", "jsonpath={.status.deploymentName}=new")
        .await;
}

/// After a rename, the old Deployment serves until the new one is available. A quota delays that.
#[tokio::test]
async fn r11b_new_deployment_replaces_the_old_one_once_available() {
    let scene = Scene::with_sample("rename").await;
    scene
        .kubectl(&["create", "quota", "one-pod", "--hard=pods=1"])
        .await;
    scene
        .wait("quota/one-pod", "jsonpath={.status.used.pods}=1")
        .await;
    scene
        .patch_foo(json!({ "deploymentName": "renamed" }))
        .await;
    scene
        .wait("deployment/renamed", "condition=ReplicaFailure")
        .await;
    scene
        .wait("foo/foo-sample", "jsonpath={.status.observedGeneration}=2")
        .await;
    let foo = scene.get("foo/foo-sample").await;
    assert_eq!(foo["status"]["deploymentName"], "foo-sample");
    let old = scene.get("deployment/foo-sample").await;
    assert_eq!(old["metadata"].get("deletionTimestamp"), None);
    assert_eq!(old["status"]["availableReplicas"], 1);

    scene.lift_quota("one-pod").await;
    scene.wait("deployment/foo-sample", "delete").await;
    let new = scene.get("deployment/renamed").await;
    assert_eq!(new["status"]["availableReplicas"], 1);
    scene
        .wait(
            "foo/foo-sample",
            "jsonpath={.status.deploymentName}=renamed",
        )
        .await;
}
