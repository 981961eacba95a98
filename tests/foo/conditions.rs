//! Conditions and events of a Foo whose Deployment makes no progress, as users, kstatus and autoscalers read them. Runs the
//! real Deployment controller with its default flags.

use std::{
    collections::BTreeMap,
    io::Write as _,
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use operator_testkit::cluster::{Output, eventually};
use serde_json::{Value, json};

use crate::{
    foo::scenarios::{DEADLINE, Scene, condition, foo},
    support::{built, foos::with_pods},
};

/// Arguments and standard input of kubectl.
type Kubectl = (Vec<String>, String);

/// Returns a cluster policy that rejects these requests in the namespace of the same name.
fn policy(namespace: &str, operation: &str, (group, resource): (&str, &str)) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": namespace },
            "spec": {
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [group], "apiVersions": ["v1"], "operations": [operation], "resources": [resource],
                }] },
                "validations": [{ "expression": "false", "message": "nothing goes" }],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": namespace },
            "spec": {
                "policyName": namespace,
                "validationActions": ["Deny"],
                "matchResources": { "namespaceSelector": {
                    "matchLabels": { "kubernetes.io/metadata.name": namespace },
                } },
            },
        },
    ] })
}

/// Prints the status that a user sees.
fn show(what: &str, foo: &Value) {
    println!("{what}: {}", serde_json::to_string(&foo["status"]).unwrap());
}

/// Asserts that the Foo is not Ready for this reason, and that it has stalled if the failure `lasts`.
fn assert_failed(foo: &Value, reason: &str, lasts: bool) {
    let [progressing, stalled] = [!lasts, lasts].map(|is| if is { "True" } else { "False" });
    for (of_type, status) in [
        ("Ready", "False"),
        ("Progressing", progressing),
        ("Stalled", stalled),
    ] {
        let condition = condition(foo, of_type);
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&json!(status), &json!(reason)),
            "{of_type}"
        );
    }
}

impl Scene {
    /// Waits until the Foo is not Ready for this reason, and until an event reports it. Returns the message of the condition.
    pub async fn not_ready(&self, name: &str, reason: &str) -> String {
        let what = format!("foo/{name}");
        eventually(DEADLINE, reason, async || {
            let foo = self.get(&what).await;
            let is = foo["status"]["conditions"].as_array().is_some_and(|all| {
                let mut all = all.iter();
                all.any(|it| it["type"] == "Ready" && it["reason"] == reason)
            });
            if is {
                Ok(())
            } else {
                Err(foo["status"].clone())
            }
        })
        .await;
        let foo = self.get(&what).await;
        show(reason, &foo);
        // Rejected pods may end without the user. The Foo stalls after a minute.
        let lasts = reason != "ReplicaFailure";
        assert_failed(&foo, reason, lasts);
        let message = condition(&foo, "Ready")["message"]
            .as_str()
            .unwrap()
            .to_owned();
        eventually(DEADLINE, "its event", async || {
            let events = self.events(reason).await;
            let is_it = |event: &&Value| {
                event["involvedObject"]["name"] == name && event["type"] == "Warning"
            };
            let event = events
                .iter()
                .find(is_it)
                .map(|event| event["message"].clone());
            event.ok_or(events)
        })
        .await;
        message
    }

    /// Moves the beginning of a failure back by a minute. Waits until the Foo stalls.
    async fn a_minute_later(&self, name: &str) {
        let what = format!("foo/{name}");
        let foo = self.get(&what).await;
        let mut conditions = foo["status"]["conditions"].clone();
        for condition in conditions.as_array_mut().unwrap() {
            if condition["type"] == "Stalled" {
                let earlier = Timestamp::now() - Duration::from_mins(1);
                let earlier = earlier.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                condition["lastTransitionTime"] = json!(earlier);
            }
        }
        let patch = json!({ "status": { "conditions": conditions } }).to_string();
        let args = ["--subresource=status", "--type=merge", "-p", &patch];
        self.kubectl(&[&["patch", "foo", name], &args[..]].concat())
            .await;
        self.wait(&what, "condition=Stalled").await;
        let reason = condition(&foo, "Ready")["reason"].as_str().unwrap();
        assert_failed(&self.get(&what).await, reason, true);
    }

    /// Sets the finalizers of a Foo.
    pub async fn set_finalizers(&self, name: &str, finalizers: &Value) {
        let patch = json!({ "metadata": { "finalizers": finalizers } }).to_string();
        self.kubectl(&["patch", "foo", name, "--type=merge", "-p", &patch])
            .await;
    }

    async fn run(&self, (args, input): &Kubectl) {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        self.try_kubectl(&args, input).await.success();
    }
}

/// Returns the status that kstatus computes for an object.
fn kstatus(object: &str) -> String {
    let mut command = Command::new(built("kstatus").join("kstatus"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(object.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let named: Value = serde_json::from_str(object).unwrap();
    println!(
        "kstatus of {}: {}",
        named["metadata"]["name"],
        said.trim_end()
    );
    said.split_once(": ").unwrap().0.to_owned()
}

/// The API server rejects the pods or their `ReplicaSet`. The Foo reports the Deployment's message until the cause is removed.
#[tokio::test]
async fn a5c_rejected_pods_are_a_reason() {
    let scene = Scene::new("refused").await;
    let args = |args: &str| (args.split(' ').map(str::to_owned).collect(), String::new());
    let enforce = format!(
        "label namespace {} pod-security.kubernetes.io/enforce",
        scene.namespace
    );
    let security = [
        args(&format!("{enforce}=restricted")),
        args(&format!("{enforce}-")),
    ];
    let quota = |hard: &str| {
        let create = format!("create quota few --hard={hard}");
        [args(&create), args("delete quota few")]
    };
    let object = |object: &Value| {
        ["apply", "delete"].map(|verb| {
            let (args, _): Kubectl = args(&format!("{verb} -f -"));
            (args, object.to_string())
        })
    };
    let limits = object(&json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "large" },
        "spec": { "limits": [{ "type": "Pod", "min": { "memory": "1Gi" } }] },
    }));
    let policy = object(&policy(&scene.namespace, "CREATE", ("", "pods")));
    let pod = json!({ "containers": [{ "name": "c", "image": "i" }] });
    let labels = json!({ "is": "probe" });
    let replica_set = json!({
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": pod },
    });
    for (name, [refuse, mend], words) in [
        ("security", security, "violates PodSecurity \"restricted"),
        ("quota", quota("pods=0"), "exceeded quota: few"),
        (
            "replica-sets",
            quota("count/replicasets.apps=0"),
            "exceeded quota: few",
        ),
        ("limits", limits, "minimum memory usage per Pod is 1Gi"),
        ("policy", policy, "nothing goes"),
    ] {
        scene.run(&refuse).await;
        let (version, kind, spec) = if name == "replica-sets" {
            ("apps/v1", "ReplicaSet", &replica_set)
        } else {
            ("v1", "Pod", &pod)
        };
        let probe = json!({ "apiVersion": version, "kind": kind, "metadata": { "name": "probe" }, "spec": spec });
        let dry = ["create", "--dry-run=server", "-f", "-"];
        eventually(DEADLINE, "it is in force", async || {
            let created = scene.try_kubectl(&dry, &probe.to_string()).await;
            if created.stderr.contains(words) {
                Ok(())
            } else {
                Err(created)
            }
        })
        .await;
        scene
            .apply(&foo(
                name,
                &json!({ "deploymentName": name, "replicas": 1 }),
            ))
            .await;
        let message = scene.not_ready(name, "ReplicaFailure").await;
        scene.a_minute_later(name).await;
        let begins = format!("Deployment \"{name}\" has 0 of 1 replicas created: ");
        assert!(
            message.starts_with(&begins) && message.contains(words),
            "{message}"
        );
        scene.run(&mend).await;
        scene.wait(&format!("foo/{name}"), "condition=Ready").await;
        let ready = scene.get(&format!("foo/{name}")).await;
        assert_eq!(
            ready["status"]["conditions"].as_array().unwrap().len(),
            2,
            "{ready}"
        );
    }
    // A Foo that was Ready is scaled. The rollout of its Deployment has ended, so no progress deadline applies.
    let [refuse, mend] = quota("pods=5");
    scene.run(&refuse).await;
    scene
        .wait("quota/few", "jsonpath={.status.used.pods}=5")
        .await;
    scene.kubectl(&["scale", "foo/quota", "--replicas=3"]).await;
    let message = scene.not_ready("quota", "ReplicaFailure").await;
    let says = "Deployment \"quota\" has 1 of 3 replicas created: pods ";
    assert!(
        message.starts_with(says) && message.contains("exceeded quota: few"),
        "{message}"
    );
    let deployment = scene.get("deployment/quota").await;
    assert_eq!(
        condition(&deployment, "Progressing")["reason"],
        "NewReplicaSetAvailable"
    );
    scene.run(&mend).await;
    scene.wait("foo/quota", "condition=Ready").await;
}

/// A paused Deployment is Ready while it is complete or only scaled. A new image is not rolled out, and the message contains
/// the command to resume.
#[tokio::test]
async fn a5c_paused_deployment_is_a_reason() {
    let mut scene = Scene::with_sample("paused").await;
    scene
        .kubectl(&["rollout", "pause", "deployment/foo-sample"])
        .await;
    scene
        .kubectl(&["scale", "foo/foo-sample", "--replicas=2"])
        .await;
    scene
        .wait("foo/foo-sample", "jsonpath={.status.availableReplicas}=2")
        .await;
    scene.wait("foo/foo-sample", "condition=Ready").await;
    let told = [
        "get",
        "events",
        "--field-selector=reason=DeploymentPaused",
        "-o",
        "name",
    ];
    assert_eq!(scene.kubectl(&told).await, "", "a scale is no warning");

    scene.upgrade("nginx:next").await;
    let message = scene.not_ready("foo-sample", "DeploymentPaused").await;
    let (says, resume) = message
        .split_once("; it is paused, to resume it: kubectl ")
        .unwrap();
    assert_eq!(
        says,
        "Deployment \"foo-sample\" has 0 of 2 replicas updated"
    );
    // It can still be scaled, with pods of the previous image.
    scene
        .kubectl(&["scale", "foo/foo-sample", "--replicas=3"])
        .await;
    scene
        .wait("foo/foo-sample", "jsonpath={.status.availableReplicas}=3")
        .await;
    let message = scene.not_ready("foo-sample", "DeploymentPaused").await;
    assert!(
        message.starts_with("Deployment \"foo-sample\" has 0 of 3 replicas updated;"),
        "{message}"
    );

    let resume: Vec<_> = resume.split(' ').collect();
    scene.kubectl(&resume).await;
    scene.wait("foo/foo-sample", "condition=Ready").await;
    let foo = scene.get("foo/foo-sample").await;
    assert_eq!(
        condition(&foo, "Ready")["message"],
        "Deployment \"foo-sample\" has 3 of 3 replicas available"
    );
}

/// Creates a Foo in each state that `GitOps` tools distinguish, and returns them. The scene has `foo-sample`, which is Ready. No
/// controller watches the namespace of `unseen`. Remove the finalizer of `going` at the end.
pub async fn foos_by_state(scene: &Scene) -> BTreeMap<&'static str, Value> {
    let namespace = create_unseen(scene).await;
    create_in_each_state(scene).await;
    let mut states = BTreeMap::new();
    for (name, reason) in [
        ("invalid", "InvalidSpec"),
        ("taken", "ErrResourceExists"),
        ("refused", "ReplicaFailure"),
        ("late", "ProgressDeadlineExceeded"),
    ] {
        scene.not_ready(name, reason).await;
    }
    states.insert("failing", scene.get("foo/refused").await);
    scene.a_minute_later("refused").await;
    let message = scene.not_ready("late", "ProgressDeadlineExceeded").await;
    let says = "Deployment \"late\" has 1 old replica still to terminate; no progress within its progressDeadlineSeconds";
    assert_eq!(message, says);
    scene.wait("foo/paused", "condition=Paused").await;

    let get = [
        "get",
        "foo",
        "unseen",
        "-o",
        "json",
        "--namespace",
        &namespace,
    ];
    let unseen = scene.kubectl(&get).await;
    states.insert("unseen", serde_json::from_str(&unseen).unwrap());
    for name in [
        "foo-sample",
        "invalid",
        "taken",
        "refused",
        "late",
        "paused",
        "going",
    ] {
        states.insert(name, scene.get(&format!("foo/{name}")).await);
    }
    states
}
/// Creates the Foo `unseen` in a namespace that no controller watches. Returns the namespace.
async fn create_unseen(scene: &Scene) -> String {
    let namespace = with_pods().await.namespace("unseen").await;
    let elsewhere = ["--namespace", &namespace];
    let manifest = foo("unseen", &json!({ "deploymentName": "unseen" })).to_string();
    let create = [&elsewhere[..], &["create", "-f", "-", "-o", "json"]].concat();
    let created = scene.try_kubectl(&create, &manifest).await.success();
    let created: Value = serde_json::from_str(&created).unwrap();
    assert_eq!(created["status"], json!({ "observedGeneration": -1 }));
    let table = [&elsewhere[..], &["get", "foo", "unseen", "--no-headers"]].concat();
    let table = scene.kubectl(&table).await;
    let row: Vec<_> = table.split_whitespace().collect();
    assert_eq!(row[..2], ["unseen", "unseen"], "{table}");
    namespace
}

/// Creates the other Foos, and causes their failures.
async fn create_in_each_state(scene: &Scene) {
    for (name, deployment) in [
        ("invalid", ""),
        ("taken", "taken"),
        ("refused", "refused"),
        ("late", "late"),
        ("paused", "paused"),
    ] {
        if name == "taken" {
            scene
                .kubectl(&["create", "deployment", "taken", "--image=i"])
                .await;
        }
        scene
            .apply(&foo(
                name,
                &json!({ "deploymentName": deployment, "replicas": 1 }),
            ))
            .await;
    }
    scene.wait("foo/late", "condition=Ready").await;
    // No node matches its new pods.
    let pod = json!({ "spec": { "nodeSelector": { "none": "such" } } });
    let slow = json!({ "spec": { "progressDeadlineSeconds": 1, "template": pod } });
    scene
        .kubectl(&["patch", "deployment", "late", "-p", &slow.to_string()])
        .await;
    scene.wait("foo/paused", "condition=Ready").await;
    scene
        .kubectl(&[
            "annotate",
            "foo",
            "paused",
            "samplecontroller.k8s.io/paused=true",
        ])
        .await;
    scene
        .apply(&foo("going", &json!({ "deploymentName": "going" })))
        .await;
    scene
        .set_finalizers("going", &json!(["example.com/hold"]))
        .await;
    scene
        .kubectl(&["delete", "foo", "going", "--wait=false"])
        .await;
    scene.wait("foo/refused", "condition=Ready").await;
    let enforce = "pod-security.kubernetes.io/enforce=restricted";
    scene
        .kubectl(&["label", "namespace", &scene.namespace, enforce])
        .await;
    scene
        .kubectl(&["scale", "foo/refused", "--replicas=2"])
        .await;
}

/// kstatus and its fork in Flux and Helm 4 compute the documented status for a Foo in each of its states.
#[tokio::test]
async fn a5b_kstatus_knows_foos() {
    let scene = Scene::with_sample("kstatus").await;
    let states = foos_by_state(&scene).await;
    for (name, word) in [
        ("unseen", "InProgress"),
        ("foo-sample", "Current"),
        ("invalid", "Failed"),
        ("taken", "Failed"),
        ("failing", "InProgress"),
        ("refused", "Failed"),
        ("late", "Failed"),
        ("paused", "Current"),
        ("going", "Terminating"),
    ] {
        assert_eq!(kstatus(&states[name].to_string()), word, "{name}");
    }
    scene.set_finalizers("going", &Value::Null).await;
}

/// A quota blocks a rename. Until it is removed, the status names and counts the old Deployment, and a scale changes that one.
#[tokio::test]
async fn r11c_old_deployment_is_counted_and_scaled_until_the_new_one_is_available() {
    let scene = Scene::new("serves").await;
    scene
        .apply(&foo(
            "foo-sample",
            &json!({ "deploymentName": "old", "replicas": 3 }),
        ))
        .await;
    scene.wait("foo/foo-sample", "condition=Ready").await;
    scene
        .kubectl(&["create", "quota", "three-pods", "--hard=pods=3"])
        .await;
    scene
        .wait("quota/three-pods", "jsonpath={.status.used.pods}=3")
        .await;
    scene.patch_foo(json!({ "deploymentName": "new" })).await;
    let message = scene.not_ready("foo-sample", "ReplicaFailure").await;
    assert!(
        message
            .contains("has 0 of 3 replicas created; until then, Deployment \"old\" serves: pods "),
        "{message}"
    );
    let serves = async |count: i64| {
        let what = format!("jsonpath={{.status.availableReplicas}}={count}");
        scene.wait("foo/foo-sample", &what).await;
        let foo = scene.get("foo/foo-sample").await;
        assert_eq!(foo["status"]["deploymentName"], "old");
        assert_eq!(foo["status"]["replicas"], count);
        show("renamed", &foo);
    };
    serves(3).await;
    scene
        .kubectl(&["scale", "foo/foo-sample", "--replicas=2"])
        .await;
    scene
        .wait("deployment/old", "jsonpath={.spec.replicas}=2")
        .await;
    serves(2).await;
    let old = scene.get("deployment/old").await;
    assert_eq!(
        old["metadata"]["annotations"]["samplecontroller.k8s.io/foo-generation"],
        "3"
    );
    scene.lift_quota("three-pods").await;
    scene.wait("deployment/old", "delete").await;
    scene
        .wait("foo/foo-sample", "jsonpath={.status.deploymentName}=new")
        .await;
    scene.wait("foo/foo-sample", "condition=Ready").await;
    assert_eq!(
        scene.get("foo/foo-sample").await["status"]["availableReplicas"],
        2
    );
}

/// A backup without `ownerReferences` is restored: Deployments first, then Foos with other UIDs. The command in the message
/// makes the Foo the controller of its Deployment again, and the pods stay.
#[tokio::test]
async fn r4c_restored_deployment_is_returned_to_its_foo_without_downtime() {
    let scene = Scene::with_sample("restored").await;
    let mut backup = scene.get("foo/foo-sample").await;
    scene
        .kubectl(&["delete", "foo", "foo-sample", "--cascade=orphan"])
        .await;
    let pods = async || {
        scene
            .kubectl(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"])
            .await
    };
    let before = pods().await;
    backup["metadata"] = json!({ "name": "foo-sample" });
    scene.apply(&backup).await;
    let message = scene.not_ready("foo-sample", "ErrResourceExists").await;
    // The command from docs/operations.md.
    let jsonpath = r#"jsonpath={.status.conditions[?(@.type=="Ready")].message}"#;
    assert_eq!(
        scene
            .kubectl(&["get", "foo", "foo-sample", "-o", jsonpath])
            .await,
        message
    );
    let (_, command) = message
        .split_once("To give it to this Foo: kubectl ")
        .unwrap();
    let (args, patch) = command.split_once(" -p ").unwrap();
    let patch = patch
        .strip_prefix('\'')
        .and_then(|it| it.strip_suffix('\''))
        .unwrap();
    let args: Vec<_> = args.split(' ').chain(["-p", patch]).collect();
    scene.kubectl(&args).await;
    scene.wait("foo/foo-sample", "condition=Ready").await;
    assert_eq!(pods().await, before);
    // The Foo controls it fully: it can be scaled, and a rename replaces it.
    scene
        .kubectl(&["scale", "foo/foo-sample", "--replicas=2"])
        .await;
    scene
        .wait("foo/foo-sample", "jsonpath={.status.availableReplicas}=2")
        .await;
    scene.patch_foo(json!({ "deploymentName": "next" })).await;
    scene.wait("deployment/foo-sample", "delete").await;
}

/// An autoscaler cannot read the scale of a Foo without `replicas` until kubectl has set it. Null is the same as unset, except
/// in a server-side apply, which the API server rejects.
#[tokio::test]
async fn a6_a_foo_without_replicas_does_not_scale() {
    let scene = Scene::new("unscaled").await;
    let left_out = foo("foo-sample", &json!({ "deploymentName": "foo-sample" }));
    let null = foo(
        "foo-sample",
        &json!({ "deploymentName": "foo-sample", "replicas": null }),
    );
    let apply =
        async |args: &[&str]| -> Output { scene.try_kubectl(args, &null.to_string()).await };
    for args in [
        &["create", "-f", "-"][..],
        &["apply", "-f", "-"],
        &["replace", "-f", "-"],
    ] {
        apply(args).await.success();
        assert_eq!(
            scene.get("foo/foo-sample").await["spec"].get("replicas"),
            None,
            "{args:?}"
        );
    }
    let refused = apply(&["apply", "--server-side", "--force-conflicts", "-f", "-"]).await;
    assert!(refused.stderr.contains("spec.replicas"), "{refused:?}");
    scene.apply(&left_out).await;
    scene.wait("foo/foo-sample", "condition=Ready").await;
    let path = format!(
        "/apis/samplecontroller.k8s.io/v1alpha1/namespaces/{}/foos/foo-sample/scale",
        scene.namespace
    );
    // The read of an autoscaler.
    let scale = scene.try_kubectl(&["get", "--raw", &path], "").await;
    assert!(
        scale.stderr.contains("\".spec.replicas\" does not exist"),
        "{scale:?}"
    );
    // kubectl writes the scale without reading it.
    scene
        .kubectl(&["scale", "foo/foo-sample", "--replicas=2"])
        .await;
    scene
        .wait("foo/foo-sample", "jsonpath={.status.availableReplicas}=2")
        .await;
    scene.kubectl(&["get", "--raw", &path]).await;
    let refused = scene
        .try_kubectl(&["scale", "foo/foo-sample", "--replicas=0"], "")
        .await;
    assert!(
        refused.stderr.contains("greater than or equal to 1"),
        "{refused:?}"
    );
}
