//! A replica's state at `/debug/state`, the output of `doctor` for it, and the age of its caches.

mod object;

use std::{net::SocketAddr, path::Path, process::Stdio, time::Duration};

use operator_testkit::{
    cluster::{Cluster, bound_command, eventually},
    proxy::Proxy,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{
    controller::Controller,
    foos::{audited, create},
};

const DEADLINE: Duration = Duration::from_secs(30);

/// Error of a Foo whose Deployment is controlled by another owner.
const ERROR: &str = "Resource \"taken\" already exists and is not managed by Foo";

async fn get(addr: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: it\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

async fn state(controller: &Controller) -> Value {
    let (head, body) = get(controller.http_addr().await, "/debug/state").await;
    assert!(
        head.starts_with("HTTP/1.1 200 ") && head.contains("\r\ncontent-type: application/json"),
        "{head}"
    );
    serde_json::from_str(&body).unwrap()
}

/// Polls the state until `so` returns true.
async fn state_until(controller: &Controller, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    eventually(DEADLINE, what, async || {
        let state = state(controller).await;
        if so(&state) { Ok(state) } else { Err(state) }
    })
    .await
}

/// Returns the lines of `doctor` about the replica at this address, as `grade check: text`.
async fn doctor(kubeconfig: &Path, namespace: &str, addr: SocketAddr) -> Vec<String> {
    let mut command = bound_command(env!("CARGO_BIN_EXE_foo-controller"));
    command
        .env_clear()
        .env("KUBECONFIG", kubeconfig)
        .args(["doctor", "--http-debug-state"])
        .arg(format!("--lease-namespace={namespace}"))
        .arg(format!("--namespace={namespace}"))
        .arg(format!("--http-addr={addr}"))
        .stdin(Stdio::null());
    let output = tokio::process::Command::from(command).output().await;
    let output = String::from_utf8(output.unwrap().stdout).unwrap();
    let lines = output.lines().map(|line| {
        let (grade, rest) = line.split_at(9);
        let (check, text) = rest.split_once("  ").unwrap();
        format!("{} {check}: {}", grade.trim_end(), text.trim_start())
    });
    lines
        .skip_while(|line| !line.contains(" replica: "))
        .collect()
}

/// Fails unless each line has the expected beginning and end.
fn are(lines: &[String], expected: &[(&str, &str)]) {
    let so = |(line, (begin, end)): (&String, &(&str, &str))| {
        line.starts_with(begin) && line.ends_with(end)
    };
    assert!(
        lines.len() == expected.len() && lines.iter().zip(expected).all(so),
        "{lines:#?}"
    );
}

fn replica(cluster: &Cluster, namespace: &str, pod: &str) -> Controller {
    Controller::spawn(|command| {
        command
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("POD_NAME", pod)
            .env("POD_UID", "1")
            .args(["--leader-election", "--http-debug-state"])
            .arg(format!("--lease-namespace={namespace}"))
            .arg(format!("--namespace={namespace}"));
    })
}

/// Checks the state of the first replica, which leads. One of its Foos fails.
fn is_of_the_leader(leads: &Value, namespace: &str) {
    assert_eq!(leads["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(leads["identity"], "first_1");
    assert_eq!(
        leads["lease"]["name"],
        format!("{namespace}/foo-controller")
    );
    assert_eq!(leads["lease"]["holder"], "first_1");
    assert_eq!(leads["lease"]["durationSeconds"], 15.0);
    assert!(leads["lease"]["seenSecondsAgo"].as_f64() < Some(15.0));
    assert!(leads["term"]["endsInSeconds"].as_f64() <= Some(10.0));
    assert_eq!(leads["term"]["transitions"], leads["lease"]["transitions"]);
    let fence = json!({ "open": true, "record": "notInstalled", "policyRejectsForSeconds": null });
    assert_eq!(leads["fence"], fence);
    assert_eq!(leads["queue"]["failing"]["total"], 1);
    let failing = &leads["queue"]["failing"]["objects"][0];
    assert_eq!(failing["namespace"], namespace);
    assert_eq!(failing["name"], "taken");
    assert_eq!(failing["reason"], "ErrResourceExists");
    assert_eq!(failing["error"], ERROR);
}

/// Returns kind, namespace, number of objects, sync state and error of each cache.
fn caches(state: &Value) -> Vec<Value> {
    let caches = state["caches"].as_array().unwrap().iter().map(|cache| {
        let version = cache["resourceVersion"].as_str().unwrap();
        assert!(version.parse::<u64>().is_ok(), "{cache}");
        let fields = ["kind", "namespace", "objects", "inSync", "failure"];
        fields.iter().map(|field| cache[field].clone()).collect()
    });
    caches.collect()
}

/// The leader reports its caches and failing objects, the standby the holder of the Lease. After a change of leader the roles
/// are swapped. `doctor` prints the same in a few lines.
#[tokio::test]
async fn a_leader_and_a_standby_report_their_state() {
    let cluster = audited().await;
    let namespace = cluster.namespace("state").await;
    let foreign = ["create", "deployment", "taken", "--image=theirs"];
    let foreign = [&["-n", &*namespace], &foreign[..]].concat();
    cluster.kubectl(&foreign).await.success();
    let names = ["fine", "taken"].map(str::to_owned);
    create(&cluster.client().await, &namespace, &names).await;
    cluster.release_lease(&namespace, "foo-controller").await;

    let mut first = replica(cluster, &namespace, "first");
    first.wait_for_log("gained the lease").await;
    let second = replica(cluster, &namespace, "second");
    let leads = state_until(&first, "the Foo fails", |state| {
        state["queue"]["failing"]["objects"][0]["attempts"].as_u64() > Some(1)
            && state["caches"][1]["objects"] == 2
    })
    .await;
    let lease = format!("{namespace}/foo-controller");
    is_of_the_leader(&leads, &namespace);
    let both = [
        json!(["Foo", namespace, 2, true, null]),
        json!(["Deployment", namespace, 2, true, null]),
    ];
    let has_both = |state| both.iter().all(|one| caches(state).contains(one));
    assert!(has_both(&leads), "{leads}");

    let stands_by = state_until(&second, "it is in sync", |state| {
        state["caches"]
            .as_array()
            .unwrap()
            .iter()
            .all(|it| it["inSync"] == true)
            && state["lease"]["holder"] == "first_1"
    })
    .await;
    assert!(has_both(&stands_by), "{stands_by}");
    assert_eq!(
        (&stands_by["term"], &stands_by["queue"]),
        (&Value::Null, &Value::Null)
    );
    let fence = json!({ "open": false, "record": null, "policyRejectsForSeconds": null });
    assert_eq!(stands_by["fence"], fence);
    let addr = second.http_addr().await;
    let held = format!("ok its Lease: stands by; {lease} is held by first_1, seen to renew it ");
    let objects = format!("ok its caches: 2 of Foo in namespace {namespace} at ");
    are(
        &doctor(cluster.kubeconfig(), &namespace, addr).await,
        &[
            ("ok replica: second_1, version ", "s"),
            (&objects, " ago at most"),
            (&held, " ago"),
            ("ok its queue: none: ", ""),
        ],
    );

    assert_eq!(first.stop().await, 0);
    // The Foo's status is complete, so the new leader would not reconcile it without this change.
    second.wait_for_log("started workers").await;
    let scale = ["scale", "foo", "taken", "--replicas=2"];
    let scale = [&["-n", &*namespace], &scale[..]].concat();
    cluster.kubectl(&scale).await.success();
    let leads = state_until(&second, "it has taken over", |state| {
        state["queue"]["failing"]["total"] == 1
    })
    .await;
    assert_eq!(leads["lease"]["holder"], "second_1");
    assert_eq!(leads["fence"]["open"], true);
    let leads = format!("; {lease} is held by second_1, seen to renew it ");
    let lines = doctor(cluster.kubeconfig(), &namespace, addr).await;
    assert!(lines[2].contains(&leads), "{lines:?}");
    let failing = format!("warning its failures: {namespace}/taken: ErrResourceExists, ");
    are(
        &lines,
        &[
            ("ok replica: second_1, version ", "s"),
            (&objects, " ago at most"),
            ("ok its Lease: leads for ", " ago"),
            ("warning its queue: ", "1 failing"),
            (&failing, ERROR),
        ],
    );
}

/// `/debug/state` returns 404 by default, and `doctor` reports that. It also reports a replica that does not run.
#[tokio::test]
async fn state_is_not_served_by_default() {
    let cluster = audited().await;
    let namespace = cluster.namespace("no-state").await;
    let mut controller = Controller::start(cluster, &["--namespace", &namespace]);
    let addr = controller.http_addr().await;
    let (head, body) = get(addr, "/debug/state").await;
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    assert_eq!(
        body,
        "not found; available paths: /livez, /readyz, /metrics\n"
    );
    let begin = format!("warning replica: cannot get http://{addr}/debug/state: ");
    let missing =
        format!("{begin}404 Not Found: not found; available paths: /livez, /readyz, /metrics; ");
    let hint = "kubectl exec -n NAMESPACE POD -- /proc/1/exe doctor";
    let lines = doctor(cluster.kubeconfig(), &namespace, addr).await;
    are(&lines, &[(&missing, hint)]);
    assert_eq!(controller.stop().await, 0);
    let lines = doctor(cluster.kubeconfig(), &namespace, addr).await;
    are(&lines, &[(&begin, hint)]);
}

/// Returns the age of this resource type's cache in the first listed scope.
async fn age(addr: SocketAddr, kind: &str) -> f64 {
    let (_, metrics) = get(addr, "/metrics").await;
    let series = format!("foo_controller_cache_age_seconds{{kind=\"{kind}\",");
    let line = metrics.lines().find(|line| line.starts_with(&series));
    line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// A cache ages while its watch receives nothing, even if objects change. The first message makes it current again.
#[tokio::test]
async fn the_age_of_a_cache_follows_its_watch() {
    const OLD: f64 = 3.;
    let cluster = audited().await;
    let namespace = cluster.namespace("age").await;
    let proxy = Proxy::start(cluster.kube_config().await).await;
    let url = proxy.url();
    let controller = Controller::start(cluster, &["--master", &url, "--namespace", &namespace]);
    controller.wait_for_log("started workers").await;
    let addr = controller.http_addr().await;
    proxy.stall();
    create(&cluster.client().await, &namespace, &["a".to_owned()]).await;
    let stalled = age(addr, "Foo").await;
    let mut last = stalled;
    eventually(DEADLINE, "it is old", async || {
        let age = age(addr, "Foo").await;
        assert!(age >= last, "{age} after {last}");
        last = age;
        if age > stalled + OLD {
            Ok(())
        } else {
            Err(age)
        }
    })
    .await;
    proxy.resume();
    eventually(DEADLINE, "both are young", async || {
        let ages = [age(addr, "Foo").await, age(addr, "Deployment").await];
        if ages.iter().all(|age| *age < OLD) {
            Ok(())
        } else {
            Err(ages)
        }
    })
    .await;
}
