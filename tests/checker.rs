//! The checker of the invariants proves itself: a good log passes, and each way to make it bad is found by its name; the
//! log of real replicas passes, until one of them writes behind the fence.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;
mod controller;
mod foos;
mod invariants;

use std::time::Duration;

use cluster::{AuditEvent, eventually};
use controller::Controller;
use foos::DEADLINE;
use invariants::Rules;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use serde_json::{Value, json};

const RULES: Rules = Rules {
    lease: ("system", "l"),
    replicas: &["replica-1", "replica-2"],
    renew_deadline: Duration::from_secs(10),
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn event(second: i64, user: &str, verb: &str, resource: &str, answer: Value) -> AuditEvent {
    let created = verb == "create";
    AuditEvent {
        verb: verb.into(),
        user: user.into(),
        user_agent: String::new(),
        resource: resource.into(),
        subresource: String::new(),
        namespace: if resource == "leases" { "system" } else { "n" }.into(),
        name: if created {
            ""
        } else {
            answer["metadata"]["name"].as_str().unwrap()
        }
        .into(),
        uri: String::new(),
        code: if created { 201 } else { 200 },
        request_object: json!({"metadata": {"resourceVersion": "1"}}),
        response_object: answer,
        stage: "ResponseComplete".into(),
        received: MicroTime(at(second)),
        reached: MicroTime(at(second)),
    }
}

fn lease(
    second: i64,
    user: &str,
    verb: &str,
    version: u64,
    holder: &str,
    transitions: i64,
) -> AuditEvent {
    let lease = json!({
        "metadata": {"name": "l", "uid": "lease", "resourceVersion": version.to_string()},
        "spec": {"holderIdentity": holder, "leaseTransitions": transitions},
    });
    event(second, user, verb, "leases", lease)
}

fn foo(second: i64, version: u64, replicas: u64) -> AuditEvent {
    let foo = json!({
        "metadata": {"name": "f", "uid": "foo", "resourceVersion": version.to_string()},
        "spec": {"deploymentName": "d", "replicas": replicas},
    });
    event(
        second,
        "admin",
        if version == 10 { "create" } else { "patch" },
        "foos",
        foo,
    )
}

fn deployment(second: i64, user: &str, version: u64, replicas: u64) -> AuditEvent {
    let deployment = json!({
        "metadata": {
            "name": "d", "resourceVersion": version.to_string(),
            "annotations": {"samplecontroller.k8s.io/foo-generation": replicas.to_string()},
            "ownerReferences": [{"controller": true, "kind": "Foo", "name": "f", "uid": "foo"}],
        },
        "spec": {"replicas": replicas},
    });
    event(
        second,
        user,
        if version == 12 { "create" } else { "patch" },
        "deployments",
        deployment,
    )
}

/// replica-1 (pod a) creates the Deployment; replica-2 (pod b) takes over and scales it.
fn good() -> Vec<AuditEvent> {
    vec![
        foo(0, 10, 1),
        lease(1, "replica-1", "create", 11, "a", 0),
        deployment(2, "replica-1", 12, 1),
        lease(3, "replica-1", "patch", 13, "", 0),
        lease(4, "replica-2", "patch", 14, "b", 1),
        foo(5, 15, 2),
        lease(6, "replica-2", "patch", 16, "b", 1),
        deployment(7, "replica-2", 17, 2),
    ]
}

/// The invariants that a log violates, once each.
fn violated(log: &[AuditEvent]) -> Vec<String> {
    let report = RULES.check(log);
    let mut names: Vec<_> = report
        .violations
        .iter()
        .map(|what| what[..2].to_owned())
        .collect();
    names.dedup();
    names
}

#[test]
fn a_good_log_is_good() {
    let report = RULES.check(&good());
    assert_eq!(
        (report.writes, report.renewals, report.acquisitions),
        (2, 4, 2)
    );
    report.assert_clean("good");
}

#[test]
fn each_invariant_is_found_violated() {
    let bad = |name: &str, spoil: &dyn Fn(&mut Vec<AuditEvent>)| {
        let mut log = good();
        spoil(&mut log);
        assert_eq!(violated(&log), [name], "{:?}", RULES.check(&log).violations);
    };
    bad("I1", &|log| {
        // The deposed replica-1 still scales, in time by its own last renewal.
        log.push(deployment(8, "replica-1", 18, 2));
    });
    bad("I1", &|log| log[7] = deployment(7, "replica-1", 17, 2));
    bad("I1", &|log| {
        log[6] = lease(6, "replica-1", "patch", 16, "b", 1);
    });
    bad("I2", &|log| log[7] = deployment(17, "replica-2", 17, 2));
    bad("I3", &|log| {
        log.pop();
    });
    bad("I3", &|log| log[7] = deployment(7, "replica-2", 17, 3));
    bad("I4", &|log| {
        log[7].response_object["metadata"]["ownerReferences"][0]["uid"] = json!("another");
    });
    bad("I5", &|log| {
        log[2] = deployment(2, "admin", 12, 1);
        log[2].response_object["metadata"]["ownerReferences"] = json!([]);
    });
    bad("I5", &|log| {
        let mut foreign = deployment(5, "admin", 20, 1);
        foreign.name = "foreign".into();
        foreign.response_object["metadata"]["name"] = json!("foreign");
        foreign.response_object["metadata"]["ownerReferences"] = json!([]);
        let mut delete = deployment(6, "replica-2", 18, 1);
        delete.verb = "delete".into();
        delete.name = "foreign".into();
        log.extend([foreign, delete]);
    });
    bad("I7", &|log| {
        log[2].response_object["metadata"]["annotations"]["samplecontroller.k8s.io/foo-generation"] =
            json!("3");
    });
    bad("I8", &|log| log[6].request_object = json!({"metadata": {}}));
    bad("I8", &|log| {
        log[4].response_object["spec"]["leaseTransitions"] = json!(0);
    });
}

#[test]
fn i6_a_write_at_rest_is_found() {
    let log = good();
    assert_eq!(RULES.writes_between(&log, at(3), at(7)).len(), 0);
    assert_eq!(RULES.writes_between(&log, at(3), at(8)).len(), 1);
}

#[tokio::test]
async fn a_real_log_is_good_until_a_deposed_replica_writes() {
    let cluster = foos::audited_alone().await;
    let lease = ("default", "foo-controller");
    let rules = Rules { lease, ..RULES };
    let replica = |user: &str| {
        Controller::spawn(|command| {
            command
                .env("KUBECONFIG", cluster.kubeconfig_of(user))
                .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true")
                .args(["--lease-namespace", lease.0, "--lease-name", lease.1]);
        })
    };
    let apply = async |replicas: u32| {
        for name in ["f", "g"] {
            let foo = json!({
                "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "metadata": {"name": name},
                "spec": {"deploymentName": name, "replicas": replicas},
            });
            let applied = cluster
                .kubectl_stdin(&["apply", "-f", "-"], &foo.to_string())
                .await;
            applied.success();
        }
        let replicas = format!("{replicas} {replicas}");
        eventually(DEADLINE, "the Deployments follow", async || {
            let get = [
                "get",
                "deployments",
                "-o",
                "jsonpath={.items[*].spec.replicas}",
            ];
            let seen = cluster.kubectl(&get).await.success();
            if seen == replicas { Ok(()) } else { Err(seen) }
        })
        .await;
    };
    let mut first = replica("replica-1");
    apply(1).await;
    let _second = replica("replica-2");
    assert_eq!(first.stop().await, 0);
    apply(2).await;
    let report = rules.check(&cluster.audit());
    report.assert_clean("a hand-over");
    assert!(report.acquisitions == 2 && report.writes >= 8, "{report:?}");

    let kubeconfig = cluster.kubeconfig_of("replica-1");
    let label = r#"{"metadata": {"labels": {"written-by": "deposed"}}}"#;
    let patch = [
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
        "patch",
        "deployment",
        "f",
        "-p",
        label,
    ];
    cluster.kubectl(&patch).await.success();
    let report = rules.check(&cluster.audit());
    assert!(
        report.violations.iter().any(|what| what.starts_with("I1")),
        "{report:?}"
    );
}
