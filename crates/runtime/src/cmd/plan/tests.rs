#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use http::Request;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Secret};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::*;
use crate::{
    api::{exists::Exists, key::Key, kind::Kind},
    client::fence::is_refused,
    config::{self, app::tests::APP},
    controller::dry_run::{DryRun, Problem},
    reconcile::context::Step,
    testing::fixtures::{Parent, Parents},
};

/// Returns a plan with a step of each kind, and the objects that it names.
fn plan() -> DryRun {
    let key = Key::new("n", "p");
    let template = |image: &str| {
        let container = json!({ "name": "web", "image": image });
        json!({ "spec": { "template": { "spec": { "containers": [container] } } } })
    };
    let patch = Step {
        actual: template("web:1"),
        limited: Some(("spec.template", "workers")),
        ..Step::of::<Exists<Deployment>>("patch", &key, template("web:2"))
    };
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": "p", "namespace": "n" },
        "stringData": { "password": "hunter2" },
    });
    let rotated = Step {
        actual: json!({ "data": { "a": "aHVudGVyMQ==", "b": "aHVudGVyMQ==" } }),
        ..Step::of::<Exists<Secret>>(
            "patch",
            &key.sibling("q"),
            json!({ "data": { "a": "aHVudGVyMg==", "b": null } }),
        )
    };
    DryRun {
        steps: vec![
            Step::of::<Exists<Secret>>("create", &key, secret),
            patch,
            rotated,
            Step::of::<Exists<Deployment>>("delete", &key.sibling("old"), Value::Null),
            Step::of::<Parent>("outside", &key, "example.com/ours".into()),
        ],
        ..DryRun::default()
    }
}

/// Returns the output for these objects, and a summary.
fn output(format: Format, plans: Vec<(&str, DryRun)>) -> (String, Summary) {
    let (mut out, mut summary) = (Vec::new(), Summary::default());
    let settings = config::sources::Settings::defaults(&APP);
    for (name, plan) in plans {
        summary.add(&plan, &settings);
        let key = Key::new("n", name);
        let object = Object {
            controller: "parent",
            kind: "Parent",
            key: &key,
            plan,
        };
        match format {
            Format::Text => text::object(&mut out, &object).unwrap(),
            Format::Json => json::object(&mut out, &object).unwrap(),
        }
    }
    match format {
        Format::Text => text::summary(&mut out, &summary).unwrap(),
        Format::Json => json::summary(&mut out, &summary).unwrap(),
    }
    (String::from_utf8(out).unwrap(), summary)
}

fn plans() -> Vec<(&'static str, DryRun)> {
    let status = |generation: i64| json!({ "status": { "observedGeneration": generation } });
    let update = Step {
        actual: status(1),
        ..Step::of::<Parent>("update", &Key::new("n", "invalid"), status(2))
    };
    let problem = |text: &str, is_settled| Problem {
        text: text.to_owned(),
        is_settled,
    };
    let none = DryRun::default;
    vec![
        ("p", plan()),
        ("same", none()),
        (
            "invalid",
            DryRun {
                steps: vec![update],
                problems: vec![problem("no \u{1b}[2J\nchild", true)],
                ..none()
            },
        ),
        (
            "broken",
            DryRun {
                problems: vec![problem("it panicked", false)],
                ..none()
            },
        ),
        (
            "held",
            DryRun {
                is_paused: true,
                ..none()
            },
        ),
        (
            "gone",
            DryRun {
                is_terminating: true,
                ..none()
            },
        ),
    ]
}

#[test]
fn the_text_has_a_block_for_each_object_with_steps_or_problems() {
    let (text, summary) = output(Format::Text, plans());
    let expected = r#"Parent n/p
  create Secret n/p
    apiVersion: v1
    kind: Secret
    metadata:
      name: p
      namespace: "n"
    stringData:
      password: <redacted>
  patch Deployment n/p
    ~ spec.template.spec.containers[web].image: "web:1" -> "web:2"
  patch Secret n/q
    ~ data.a: "<redacted>" -> "<redacted>"
    - data.b: "<redacted>"
  delete Deployment n/old
  act outside the cluster (finalizer example.com/ours)

Parent n/invalid
  update the status
    ~ status.observedGeneration: 1 -> 2
  blocked: no  [2J child

Parent n/broken
  error: it panicked

Plan: 1 to create, 2 to patch, 1 to delete, 1 to update (status), 1 outside the cluster
Objects: 1 with changes, 1 up to date, 1 paused, 1 terminating, 1 blocked, 1 failed
Changes of spec.template: 1; workers = 2 limits how many of them run at the same time
These are the first requests. The plan contains neither the statuses after them nor the reactions of other controllers
"#;
    assert_eq!(text, expected);
    assert!(summary.has_steps() && summary.is_incomplete());
}

/// A line for each object that is not up to date, and last the summary.
#[test]
fn the_json_has_a_line_for_each_object() {
    let (text, _) = output(Format::Json, plans());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    let first: Value = serde_json::from_str(lines[0]).unwrap();
    assert_eq!(
        first["steps"][1],
        json!({
            "verb": "patch", "kind": "Deployment", "namespace": "n", "name": "p",
            "body": { "spec": { "template": { "spec": { "containers": [{ "image": "web:2", "name": "web" }] } } } },
            "changes": [{
                "path": "spec.template.spec.containers[web].image", "old": "web:1", "new": "web:2",
            }],
        })
    );
    assert!(
        !text.contains("hunter") && !text.contains("aHVudGVy"),
        "{text}"
    );
    assert_eq!(
        lines[1],
        r#"{"controller":"parent","kind":"Parent","namespace":"n","name":"invalid","state":"blocked","steps":[{"verb":"update","kind":"Parent","namespace":"n","name":"invalid","body":{"status":{"observedGeneration":2}},"changes":[{"path":"status.observedGeneration","old":1,"new":2}]}],"problems":["no \u001b[2J\nchild"]}"#
    );
    assert_eq!(
        lines[5],
        r#"{"summary":{"steps":{"create":1,"patch":2,"delete":1,"update":1,"outside":1,"get":0},"objects":{"changing":1,"upToDate":1,"paused":1,"terminating":1,"blocked":1,"failed":1},"limits":[{"field":"spec.template","setting":"workers","value":"2","patches":1}]}}"#
    );
}

/// Without a step, the text is the summary.
#[test]
fn a_plan_without_steps_is_two_lines() {
    let (text, summary) = output(Format::Text, vec![("same", DryRun::default())]);
    let expected =
        "Plan: 0 to create, 0 to patch, 0 to delete\nObjects: 0 with changes, 1 up to date\n";
    assert_eq!(text, expected);
    assert!(!summary.has_steps() && !summary.is_incomplete());
}

/// A long text is shown by its changed lines.
#[test]
fn a_text_of_several_lines_is_compared_by_line() {
    let file = |port: &str| json!({ "data": { "f": format!("# file\nlisten {port}\nend\n") } });
    let step = Step {
        actual: file("80"),
        ..Step::of::<Exists<k8s_openapi::api::core::v1::ConfigMap>>(
            "patch",
            &Key::new("n", "m"),
            file("81"),
        )
    };
    let plan = DryRun {
        steps: vec![step],
        ..DryRun::default()
    };
    let (text, _) = output(Format::Text, vec![("p", plan)]);
    let block = "Parent n/p\n  patch ConfigMap n/m\n    ~ data.f:\n        - listen 80\n        + listen 81\n\n";
    assert!(text.starts_with(block), "{text}");
}

/// The line of a watch names the resource type and the namespace, and the remedy.
#[tokio::test]
async fn a_watch_that_fails_has_a_line() {
    let unready = |failure: Option<(Reason, &str)>| Unready {
        kind: Kind::of::<Deployment>(),
        namespace: Some("n".to_owned()),
        failure: failure.map(|(reason, text)| (reason, text.to_owned())),
        heard: tokio::time::Instant::now(),
    };
    for (failure, expected) in [
        (
            Some((
                Reason::Forbidden,
                "not allowed to list and watch deployments in namespace n: apply the ClusterRole that the command rbac \
                 prints, and its binding; retrying",
            )),
            "not allowed to list and watch deployments in namespace n: bind this user to a ClusterRole with these \
             permissions; `some-operator rbac` prints one that has them",
        ),
        (
            Some((
                Reason::Failing,
                "cannot watch deployments in namespace n: refused; retrying",
            )),
            "cannot watch deployments in namespace n: refused",
        ),
        (
            None,
            "the list of deployments in namespace n is not complete after 0s without a message of the API server: run plan \
             again",
        ),
    ] {
        assert_eq!(line(&APP, &unready(failure)), expected);
    }
}

/// The client of the command rejects each write of a reconciler.
#[tokio::test]
async fn no_write_passes_the_fence_of_a_plan() {
    let config = Config {
        master: Some(http::Uri::from_static("http://127.0.0.1:1")),
        ..Config::shipped(&APP)
    };
    let host = Host::for_tests([]);
    let settings = config::sources::Settings::defaults(&APP);
    let (sender, client) = oneshot::channel();
    let mut out = Vec::new();
    let planning = super::plan(
        &APP,
        &host,
        &config,
        &settings,
        Format::Text,
        &mut out,
        |program| {
            program.controller("parent", Parents::build);
            let _ = sender.send(program.shared.client.clone());
        },
    );
    let client = tokio::select! {
        client = client => client.unwrap(),
        ended = planning => panic!("{ended:?}"),
    };
    let write = Request::post("/apis/example.com/v1/namespaces/n/children");
    let written = client
        .request::<Value>(write.body(Vec::new()).unwrap())
        .await;
    let error = written.unwrap_err();
    assert!(is_refused(&error), "{error}");
}
