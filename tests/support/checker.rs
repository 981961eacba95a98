//! Tests of the invariant checker. A correct log has no violation, and each fault is reported as a violation of its invariant.
//! The log of real replicas passes until a deposed replica writes.

use std::time::Duration;

use foo_controller::api::Foo;
use foo_simulation::invariants::{
    Election, FENCING_HOLDER, GENERATION, Report, Work, check, unsettled, version,
};
use k8s_openapi::{
    api::apps::v1::Deployment, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp,
};
use operator_simulation::invariants::check_of;
use operator_testkit::cluster::{AuditEvent, Cluster, eventually};
use serde_json::{Value, json};

use crate::support::{
    controller::Controller,
    foos::{self, DEADLINE, delays},
};

/// Log that advances by one second for each request and by one resourceVersion for each write.
#[derive(Default)]
struct Log(Vec<AuditEvent>);

impl Log {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + Duration::from_secs(self.0.len().try_into().unwrap())
    }

    /// Adds a successful request for `object`.
    fn add(&mut self, user: &str, verb: &str, resource: &str, request: Value, mut object: Value) {
        object["metadata"]["resourceVersion"] = (self.0.len() + 1).to_string().into();
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let now = MicroTime(self.now());
        self.0.push(AuditEvent {
            verb: verb.into(),
            user: user.into(),
            user_agent: String::new(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: "n".into(),
            name: object["metadata"]["name"].as_str().unwrap().into(),
            uri: String::new(),
            code: 200,
            request_object: request,
            response_object: object,
            stage: "ResponseComplete".into(),
            received: now.clone(),
            reached: now,
        });
    }

    fn lease(&mut self, user: &str, holder: &str, transitions: i64) {
        let versions = self.0.iter().filter(|event| event.resource == "leases");
        let base = versions
            .filter_map(|event| version(&event.response_object))
            .max();
        let (verb, request) = match base {
            None => ("create", json!({ "metadata": { "name": "l" } })),
            Some(base) => {
                let metadata = json!({ "name": "l", "resourceVersion": base.to_string() });
                (
                    "patch",
                    json!({ "metadata": metadata, "spec": { "holderIdentity": holder } }),
                )
            }
        };
        let spec = json!({ "holderIdentity": holder, "leaseTransitions": transitions });
        let lease = json!({ "metadata": { "name": "l", "uid": "lease" }, "spec": spec });
        self.add(user, verb, "leases", request, lease);
    }

    fn deployment(&mut self, user: &str, verb: &str, owner: &str, generation: u32) {
        let owner = json!({ "apiVersion": "v1", "kind": "Foo", "name": "f", "uid": owner, "controller": true });
        let metadata = json!({
            "name": "d", "uid": "deployment", "ownerReferences": [owner],
            "annotations": { GENERATION: generation.to_string() },
        });
        self.add(
            user,
            verb,
            "deployments",
            Value::Null,
            json!({ "metadata": metadata }),
        );
    }

    fn status(&mut self, user: &str) {
        let foo = json!({ "metadata": { "name": "f", "namespace": "n", "uid": "foo" } });
        self.add(user, "update", "foos/status", Value::Null, foo);
    }

    /// Returns a log of two terms. A creates and acquires the Lease, works and releases it. B acquires it, works and renews it.
    fn good() -> Self {
        let mut log = Self::default();
        let foo = json!({ "metadata": { "name": "f", "namespace": "n", "uid": "foo" } });
        log.add("admin", "create", "foos", Value::Null, foo);
        log.lease("a", "", 0);
        log.lease("a", "a_1", 1);
        log.deployment("a", "create", "foo", 1);
        log.status("a");
        log.lease("a", "", 1);
        log.lease("b", "b_1", 2);
        log.deployment("b", "patch", "foo", 2);
        log.lease("b", "b_1", 2);
        log.status("b");
        log
    }

    /// Adds a write to an object whose controlling owner has this kind.
    fn owned(&mut self, user: &str, verb: &str, resource: &str, kind: &str, owner: &str) {
        let owner = json!({ "apiVersion": "v1", "kind": kind, "name": "o", "uid": owner, "controller": true });
        let metadata = json!({ "name": "o", "uid": resource, "ownerReferences": [owner] });
        let object = json!({ "metadata": metadata });
        self.add(user, verb, resource, Value::Null, object);
    }

    fn election() -> Election {
        Election {
            users: ["a".to_owned(), "b".to_owned()].into(),
            lease: "l".to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
        }
    }

    fn check(&self) -> Report {
        check(
            &self.0,
            &Self::election(),
            &[(
                Timestamp::UNIX_EPOCH + Duration::from_secs(100),
                Timestamp::MAX,
            )],
        )
    }

    /// Returns the violated invariants.
    fn violated(&self) -> Vec<String> {
        let lines = self.check().violations.into_iter();
        lines.map(|line| line[..2].to_owned()).collect()
    }

    /// Adds the deletion of a Deployment. Its response contains no resourceVersion.
    fn delete(&mut self, user: &str, uid: &str) {
        let preconditions = json!({ "preconditions": { "uid": uid } });
        let name = json!({ "metadata": { "name": "d" } });
        self.add(user, "delete", "deployments", preconditions, name);
        let status = json!({ "kind": "Status", "metadata": {}, "status": "Success" });
        self.0.last_mut().unwrap().response_object = status;
    }

    /// Adds a `SelfSubjectAccessReview` of a replica.
    fn review(&mut self, user: &str) {
        let review = json!({ "metadata": { "name": "" } });
        self.add(
            user,
            "create",
            "selfsubjectaccessreviews",
            Value::Null,
            review,
        );
    }

    fn sleep(&mut self, seconds: usize) {
        for _ in 0..seconds {
            let foo = json!({ "metadata": { "name": "f" } });
            self.add("admin", "get", "foos", Value::Null, foo);
        }
    }
}

fn after_good(fault: impl FnOnce(&mut Log)) -> Vec<String> {
    let mut log = Log::good();
    fault(&mut log);
    log.violated()
}

/// A second Deployment does not count as a delay, because the Foo already had its first one.
#[test]
fn a_second_deployment_is_no_delay() {
    let mut log = Log::default();
    for resource in ["foos", "deployments", "deployments"] {
        let object = json!({ "metadata": { "name": "f" } });
        log.add("a", "create", resource, Value::Null, object);
    }
    log.0.iter_mut().for_each(|event| event.code = 201);
    let second = Duration::from_secs(1);
    assert_eq!(delays(&log.0), [(Timestamp::UNIX_EPOCH, second)]);
}

#[test]
fn a_good_log_has_no_violation() {
    let report = Log::good().check();
    assert!(report.violations.is_empty(), "{report}");
    assert_eq!(
        (report.writes, report.lease_writes, report.terms),
        (4, 5, 2)
    );
}

#[test]
fn i1_a_write_by_another_than_the_holder_is_found() {
    let mut log = Log::good();
    // A's last write, which was sent in time, is stored after B's takeover.
    let version = log.0[6].response_object["metadata"]["resourceVersion"].clone();
    let later = version.as_str().unwrap().parse::<u64>().unwrap() + 1;
    log.0[4].response_object["metadata"]["resourceVersion"] = later.to_string().into();
    assert_eq!(log.violated(), ["I1"]);
}

/// Only the time of a deletion is known: its response contains no resourceVersion.
#[test]
fn i1_a_deletion_by_another_than_the_holder_is_found() {
    let deposed = |log: &mut Log| log.delete("a", "deployment");
    assert_eq!(after_good(deposed), ["I1", "I2"]);
    let mut early = Log::default();
    early.delete("a", "deployment");
    assert_eq!(early.violated(), ["I1", "I2", "I5"]);

    // Sent in A's term and answered in B's, so its term is unknown.
    let mut log = Log::good();
    log.delete("a", "deployment");
    let mut late = log.0.pop().unwrap();
    (late.received, late.reached) = (log.0[4].received.clone(), log.0[7].received.clone());
    log.0.insert(5, late);
    let report = log.check();
    assert!(report.violations.is_empty(), "{report}");
    assert_eq!(report.unknown, 1, "{report}");
}

#[test]
fn i2_a_rejected_write_after_the_deadline_is_found() {
    assert!(
        after_good(|log| {
            log.sleep(8);
            log.status("b");
        })
        .is_empty()
    );
    assert_eq!(
        after_good(|log| {
            log.sleep(11);
            log.status("b");
            log.0.last_mut().unwrap().code = 409;
        }),
        ["I2"]
    );
}

/// With a Lease of 3 s, the margin is 1 s and the tolerance 200 ms.
#[test]
fn i2_a_write_within_a_fifth_of_the_margin_is_tolerated() {
    let election = Election {
        lease_duration: Duration::from_secs(3),
        renew_deadline: Duration::from_secs(2),
        ..Log::election()
    };
    let after_renewal = |time: u64| {
        let mut log = Log::good();
        let [.., renewal, last] = &mut log.0[..] else {
            unreachable!()
        };
        last.received.0 = renewal.received.0 + Duration::from_millis(time);
        check(&log.0, &election, &[]).violations
    };
    assert_eq!(after_renewal(2_150), Vec::<String>::new());
    let late = after_renewal(2_250);
    assert!(
        matches!(&late[..], [one] if one.starts_with("I2")),
        "{late:?}"
    );
}

#[test]
fn i3_a_foo_without_its_deployment_is_found() {
    let foo = |replicas: u32| -> Foo {
        serde_json::from_value(json!({
            "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo",
            "metadata": { "name": "f", "namespace": "n", "uid": "foo", "generation": 2 },
            "spec": { "deploymentName": "d", "replicas": replicas },
            "status": { "observedGeneration": 2, "availableReplicas": 0 },
        }))
        .unwrap()
    };
    let owner =
        json!({ "apiVersion": "v1", "kind": "Foo", "name": "f", "uid": "foo", "controller": true });
    let labels = json!({ "app": "nginx", "controller": "f" });
    let right = json!({
        "metadata": { "name": "d", "namespace": "n", "ownerReferences": [owner], "labels": labels },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "nginx", "image": "i" }] },
            },
        },
    });
    let wrong = |foo: Foo, pointer: &str, value: Value| {
        let mut deployment = right.clone();
        if let Some(place) = deployment.pointer_mut(pointer) {
            *place = value;
        }
        let deployment: Deployment = serde_json::from_value(deployment).unwrap();
        unsettled(&[foo], &[deployment], "i").concat()
    };
    assert_eq!(wrong(foo(1), "/none", Value::Null), "");
    assert_eq!(unsettled(&[foo(1)], &[], "i"), ["I3 f has no Deployment"]);
    assert_eq!(
        wrong(foo(2), "/none", Value::Null),
        "I3 f has another number of replicas"
    );
    let image = "/spec/template/spec/containers/0/image";
    assert_eq!(
        wrong(foo(1), image, json!("evil")),
        "I3 f has another image"
    );
    for place in [
        "/metadata/labels/app",
        "/spec/selector/matchLabels/controller",
        "/spec/template/metadata/labels/app",
    ] {
        let said = wrong(foo(1), place, json!("other"));
        assert_eq!(said, "I3 f has other labels", "{place}");
    }
}

#[test]
fn i4_a_deployment_that_names_no_foo_is_found() {
    let fault = |log: &mut Log| log.deployment("b", "create", "another", 2);
    assert_eq!(after_good(fault), ["I4"]);
}

#[test]
fn i5_a_write_to_an_object_of_no_foo_is_found() {
    let fault = |log: &mut Log| log.deployment("b", "patch", "another", 2);
    assert_eq!(after_good(fault), ["I5"]);
    let fault = |log: &mut Log| {
        let map = json!({ "metadata": { "name": "m" } });
        log.add("b", "create", "configmaps", Value::Null, map);
    };
    assert_eq!(after_good(fault), ["I5"]);
    let record = |log: &mut Log, name: &str, holder: &str| {
        let annotations = json!({ FENCING_HOLDER: holder });
        let record = json!({ "metadata": { "name": name, "annotations": annotations } });
        log.add("b", "patch", "serviceaccounts", Value::Null, record);
    };
    assert!(after_good(|log| record(log, "l-fencing", "b_1")).is_empty());
    assert_eq!(after_good(|log| record(log, "l-fencing", "a_1")), ["I5"]);
    assert_eq!(after_good(|log| record(log, "another", "b_1")), ["I5"]);
    assert!(after_good(|log| log.delete("b", "deployment")).is_empty());
    assert_eq!(after_good(|log| log.delete("b", "another")), ["I5"]);
}

#[test]
fn i6_a_write_where_nothing_changed_is_found() {
    let fault = |log: &mut Log| {
        log.sleep(100);
        log.lease("b", "b_1", 2);
        log.status("b");
    };
    assert_eq!(after_good(fault), ["I6"]);
    let review = |log: &mut Log| {
        log.sleep(100);
        log.review("a");
    };
    assert!(after_good(review).is_empty(), "it stores nothing");
}

/// A resource type other than Foo owns other types and may write the finalizers of its objects.
#[test]
fn i5_another_resource_type_has_its_own_owned_types() {
    const OTHER: Work = Work {
        kind: "Other",
        primary: "others",
        owned: &["configmaps", "services"],
        status: true,
        finalizers: true,
        fencing_holder: "example.com/lease-holder",
    };
    let violated = |fault: &dyn Fn(&mut Log)| {
        let mut log = Log::default();
        let metadata = json!({ "name": "o", "namespace": "n", "uid": "other" });
        log.add(
            "admin",
            "create",
            "others",
            Value::Null,
            json!({ "metadata": metadata }),
        );
        log.lease("a", "", 0);
        log.lease("a", "a_1", 1);
        log.owned("a", "create", "configmaps", "Other", "other");
        log.owned("a", "patch", "services", "Other", "other");
        fault(&mut log);
        let report = check_of(&[OTHER], &log.0, &Log::election(), &[]);
        let lines = report.violations.iter();
        (
            report.writes,
            lines.map(|line| line[..2].to_owned()).collect::<Vec<_>>(),
        )
    };
    let none = Vec::<String>::new();
    assert_eq!(violated(&|_| {}), (2, none.clone()));
    assert_eq!(
        violated(&|log| log.owned("a", "patch", "services", "Other", "another")).1,
        ["I5"]
    );
    assert_eq!(
        violated(&|log| log.owned("a", "create", "services", "Foo", "other")).1,
        ["I4"]
    );
    assert_eq!(
        violated(&|log| log.owned("a", "create", "deployments", "Other", "other")).1,
        ["I5"]
    );
    assert_eq!(
        violated(&|log| log.owned("b", "patch", "services", "Other", "other")).1,
        ["I1", "I2"]
    );
    let patch = |log: &mut Log, user: &str, more: Value| {
        let mut request =
            json!({ "metadata": { "uid": "other", "resourceVersion": "1", "finalizers": ["f"] } });
        request
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let other = json!({ "metadata": { "name": "o", "namespace": "n", "uid": "other" } });
        log.add(user, "patch", "others", request, other);
    };
    assert_eq!(
        violated(&|log| patch(log, "a", json!({}))),
        (3, none.clone())
    );
    assert_eq!(
        violated(&|log| patch(log, "a", json!({ "spec": {} }))).1,
        ["I5"]
    );
    assert_eq!(violated(&|log| patch(log, "b", json!({}))).1, ["I1", "I2"]);

    // Removing the last finalizer deletes the object. The response has the resourceVersion from before, which belongs to
    // another term.
    let ended_by = |user: &'static str| {
        move |log: &mut Log| {
            log.lease("a", "", 1);
            log.lease("b", "b_1", 2);
            patch(log, user, json!({}));
            let last = log.0.last_mut().unwrap();
            last.response_object["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z".into();
            last.response_object["metadata"]["resourceVersion"] = "1".into();
        }
    };
    assert_eq!(violated(&ended_by("b")), (3, none));
    assert_eq!(violated(&ended_by("a")).1, ["I1", "I2"]);
}

#[test]
fn i7_a_generation_that_goes_back_is_found() {
    let fault = |log: &mut Log| log.deployment("b", "patch", "foo", 1);
    assert_eq!(after_good(fault), ["I7"]);
}

#[test]
fn i8_a_lease_write_on_no_condition_is_found_and_so_are_wrong_transitions() {
    let fault = |log: &mut Log| {
        log.lease("b", "b_1", 2);
        log.0.last_mut().unwrap().request_object = json!({});
    };
    assert_eq!(after_good(fault), ["I8"]);
    for (user, holder, transitions) in [
        ("b", "b_1", 3),
        ("a", "a_2", 2),
        ("b", "b_2", 2),
        ("b", "a_2", 3),
        ("a", "", 2),
    ] {
        let fault = |log: &mut Log| log.lease(user, holder, transitions);
        assert_eq!(after_good(fault), ["I8"], "{user} {holder} {transitions}");
    }
    for (user, holder, transitions) in [
        ("b", "b_1", 2),
        ("a", "a_2", 3),
        ("b", "b_2", 3),
        ("b", "", 2),
    ] {
        let fault = |log: &mut Log| log.lease(user, holder, transitions);
        assert!(
            after_good(fault).is_empty(),
            "{user} {holder} {transitions}"
        );
    }
}

/// After the Lease was deleted, the previous leader may work until its renew deadline, and no longer.
#[test]
fn a_deleted_lease_excuses_the_previous_leader_until_its_deadline() {
    let mut log = Log::good();
    let create = |log: &mut Log, holder: &str| {
        log.lease("a", holder, 0);
        let last = log.0.last_mut().unwrap();
        last.verb = "create".into();
        last.request_object = json!({ "metadata": { "name": "l" } });
        last.response_object["metadata"]["uid"] = "another".into();
    };
    create(&mut log, "");
    log.status("b");
    let report = log.check();
    assert!(report.violations.is_empty(), "{report}");
    assert_eq!(report.lease_deleted, 1);
    log.sleep(11);
    log.status("b");
    assert_eq!(log.violated(), ["I1", "I2"]);

    let mut log = Log::good();
    create(&mut log, "a_2");
    log.status("b");
    assert_eq!(
        log.violated(),
        ["I8", "I1"],
        "while another held the next one, which it created so"
    );
}

/// A lost response is counted, and is no violation.
#[test]
fn a_lease_write_with_a_lost_response_is_counted() {
    let mut log = Log::good();
    log.lease("b", "b_1", 2);
    log.status("b");
    let renewal = log.0.len() - 2;
    log.0[renewal].code = 504;
    log.lease("b", "b_1", 2);
    let request = &mut log.0.last_mut().unwrap().request_object;
    request["spec"] = json!({});
    assert!(log.violated().is_empty(), "{}", log.check());
}

#[tokio::test]
async fn a_real_log_is_good_until_a_deposed_replica_writes() {
    let cluster = foos::audited_alone().await;
    cluster.release_lease("default", "foo-controller").await;
    let election = Election {
        users: ["replica-1".to_owned(), "replica-2".to_owned()].into(),
        lease: "foo-controller".to_owned(),
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
    };
    let replica = |user: &str| {
        Controller::spawn(|command| {
            command
                .env("KUBECONFIG", cluster.kubeconfig_of(user))
                .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true")
                .env("POD_NAMESPACE", "default")
                .env("POD_NAME", user);
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
    rename(&cluster, "g", "h").await;
    let report = check(&cluster.audit(), &election, &[]);
    println!("a hand-over: {report}");
    assert!(report.violations.is_empty(), "{report}");
    assert!(report.terms == 2 && report.writes >= 10, "{report}");

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
    let report = check(&cluster.audit(), &election, &[]);
    let invariants: Vec<_> = report.violations.iter().map(|line| &line[..2]).collect();
    assert_eq!(invariants, ["I1", "I2"], "{report}");
}

/// Renames the Foo's Deployment and waits until the old one is deleted. Writes the status of the new Deployment, because no
/// controller creates pods here.
async fn rename(cluster: &Cluster, foo: &str, to: &str) {
    let patch = json!({ "spec": { "deploymentName": to } }).to_string();
    let renamed = ["patch", "foo", foo, "--type=merge", "-p", &patch];
    cluster.kubectl(&renamed).await.success();
    let created = ["wait", "--for=create", "deployment", to, "--timeout=60s"];
    cluster.kubectl(&created).await.success();
    let status = json!({ "status": {
        "observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
    } });
    let complete = [
        "patch",
        "deployment",
        to,
        "--subresource=status",
        "--type=merge",
        "-p",
    ];
    let status = status.to_string();
    let complete = [&complete[..], &[&*status]].concat();
    cluster.kubectl(&complete).await.success();
    let deleted = ["wait", "--for=delete", "deployment", foo, "--timeout=60s"];
    cluster.kubectl(&deleted).await.success();
}
