//! Comparison of pod templates: random templates with every field, some of them invalid, in each kind of write.

use std::collections::BTreeMap;

use operator_testkit::{
    api_server::{Kind, Method, Release},
    differential::differ,
};
use proptest::prelude::*;
use proptest::{
    strategy::ValueTree as _,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use serde_json::{Value, json};

use super::{
    Run,
    side::{ADMIN, RELEASE, path},
    special::{JSON, ask, sides},
    steps::{APPLY, MERGE, STRATEGIC},
    templates,
};

const JSON_PATCH: &str = "application/json-patch+json";
/// Writes to one object, before it is deleted.
const WRITES: usize = 12;
/// Default number of requests.
const REQUESTS: usize = 1200;

/// A request with a pod template.
#[derive(Clone, Debug)]
struct Write {
    kind: Kind,
    how: &'static str,
    /// Values of the spec of the pod.
    pod: Value,
    field_validation: &'static str,
    manager: &'static str,
}

fn writes() -> impl Strategy<Value = Write> {
    let how = prop::sample::select(vec![
        "create", "create", "put", "put", MERGE, STRATEGIC, STRATEGIC, JSON_PATCH, APPLY, APPLY,
        "scale",
    ]);
    let kind = prop_oneof![4 => Just(Kind::Deployment), 1 => Just(Kind::Job)];
    let validation = prop::sample::select(vec!["", "", "", "Strict", "Ignore", "Warn"]);
    let manager = prop::sample::select(vec!["one", "two"]);
    (kind, how, templates::pods(), validation, manager).prop_map(
        |(kind, how, pod, field_validation, manager)| Write {
            kind,
            how: match how {
                // A Job does not change.
                _ if kind == Kind::Job => "create",
                // An apply has no directives: their errors are in any order.
                APPLY if pod.to_string().contains("\"$") => MERGE,
                how => how,
            },
            pod,
            field_validation,
            manager,
        },
    )
}

/// Returns an object with this pod.
fn whole(kind: Kind, name: &str, pod: &Value) -> Value {
    let labels = json!({ "app": "a" });
    let template = json!({ "metadata": { "labels": labels }, "spec": pod });
    let mut object = json!({
        "apiVersion": kind.api_version(), "kind": kind.info().kind, "metadata": { "name": name },
        "spec": { "template": template },
    });
    if kind == Kind::Deployment {
        object["spec"]["selector"] = json!({ "matchLabels": labels });
    }
    object
}

/// Differences and refusals of a run.
#[derive(Default)]
struct Report {
    same_messages: bool,
    sent: usize,
    accepted: usize,
    differences: Vec<String>,
    not_modelled: BTreeMap<String, usize>,
}

impl Report {
    async fn send(&mut self, sides: &mut [Run; 2], namespace: &str, name: &str, write: &Write) {
        let all = path(write.kind, namespace);
        let validation = match write.field_validation {
            "" => String::new(),
            validation => format!("&fieldValidation={validation}"),
        };
        let query = format!("fieldManager={}{validation}", write.manager);
        let partial = json!({ "spec": { "template": { "spec": write.pod } } });
        let mut object = whole(write.kind, name, &write.pod);
        let one = format!("{all}/{name}?{query}");
        let (method, path, style, body) = match write.how {
            "create" if write.kind == Kind::Job => {
                if write.pod["restartPolicy"].is_null() {
                    object["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
                }
                (
                    Method::POST,
                    format!("{all}?dryRun=All&{query}"),
                    JSON,
                    object,
                )
            }
            "create" => (
                Method::POST,
                format!("{all}?dryRun=All&{query}"),
                JSON,
                object,
            ),
            "new" => (Method::POST, format!("{all}?{query}"), JSON, object),
            "put" => (Method::PUT, one, JSON, object),
            "scale" => {
                let replicas = write.pod.as_object().map_or(0, serde_json::Map::len);
                let path = format!("{all}/{name}/scale?{query}");
                let scale = json!({ "spec": { "replicas": replicas } });
                (Method::PATCH, path, MERGE, scale)
            }
            JSON_PATCH => {
                let fields = write.pod.as_object().into_iter().flatten();
                let changes = fields.map(|(field, value)| {
                    let path = format!("/spec/template/spec/{field}");
                    json!({ "op": "add", "path": path, "value": value })
                });
                (Method::PATCH, one, JSON_PATCH, changes.collect())
            }
            APPLY => (Method::PATCH, format!("{one}&force=true"), APPLY, object),
            style => (Method::PATCH, one, style, partial),
        };
        let request = ask(method.clone(), &path, style, &body);
        let [real, simulated] = sides;
        let told = simulated.side.send_warned(&request, ADMIN).await;
        if let (0, _, why) = &told {
            let why = why.as_str().unwrap_or_default();
            // Without the values.
            let why = why.split(['=', '{', '[']).next().unwrap_or_default();
            *self.not_modelled.entry(why.to_owned()).or_default() += 1;
            return;
        }
        self.sent += 1;
        let (code, mut warnings, answer) = told;
        warnings.sort();
        let mut simulated =
            json!({ "code": code, "warnings": warnings, "body": simulated.names.normal(answer) });
        let (code, mut warnings, answer) = real.side.send_warned(&request, ADMIN).await;
        if let Some(version) = answer["metadata"]["resourceVersion"].as_str() {
            // The API server changes the object of its cache first. A patch of an older object has the warnings of another template.
            let path = format!("{all}/{name}?resourceVersion={version}");
            let fresh = ask(Method::GET, &path, JSON, &Value::Null);
            real.side.send_warned(&fresh, ADMIN).await;
        }
        warnings.sort();
        self.accepted += usize::from(code < 300);
        let mut real =
            json!({ "code": code, "warnings": warnings, "body": real.names.normal(answer) });
        if !self.same_messages {
            hide_messages(&mut real);
            hide_messages(&mut simulated);
        }
        if real != simulated {
            let mut lines = Vec::new();
            differ("", &real, &simulated, &mut lines);
            lines.truncate(6);
            let lines = lines.join("\n  ");
            let difference = format!("{method} {style} {path} {}:\n  {lines}", write.pod);
            self.differences.push(difference);
        }
    }
}

/// Sends writes of this seed. After a difference, it continues with other objects.
async fn compare(report: &mut Report, seed: u64, enough: usize) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    while report.sent < enough && report.differences.len() < 20 {
        let (mut sides, namespace) = sides("p").await;
        let before = report.differences.len();
        let mut number = 0;
        while report.sent < enough && report.differences.len() == before {
            number += 1;
            let name = format!("a{number}");
            let first = Write {
                kind: Kind::Deployment,
                how: "new",
                pod: templates::base(),
                field_validation: "",
                manager: "one",
            };
            report.send(&mut sides, &namespace, &name, &first).await;
            for _ in 0..WRITES {
                let write = writes().new_tree(&mut runner).unwrap().current();
                if report.differences.len() == before {
                    report.send(&mut sides, &namespace, &name, &write).await;
                }
            }
        }
    }
}

/// Removes messages and warnings. The API server in memory has the messages of one version only.
fn hide_messages(answer: &mut Value) {
    answer["warnings"] = Value::Null;
    if answer["body"]["kind"] == "Status" {
        answer["body"] = Value::Null;
    }
}

#[tokio::test]
async fn pod_templates_are_handled_alike() {
    super::client(&super::CLUSTER).await;
    let same_messages = RELEASE.get() == Some(&Release::default());
    let enough = std::env::var("FOO_CONTROLLER_TEST_REQUESTS");
    let enough = enough.map_or(REQUESTS, |enough| enough.parse().unwrap());
    let seed = std::env::var("FOO_CONTROLLER_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut report = Report {
        same_messages,
        ..Report::default()
    };
    compare(&mut report, seed, enough).await;
    eprintln!(
        "{} requests, {} accepted, not modelled: {:#?}",
        report.sent, report.accepted, report.not_modelled
    );
    let differences = report.differences.join("\n\n");
    assert!(differences.is_empty(), "{differences}");
    assert!(report.accepted > report.sent / 3);
    let unknown: usize = report.not_modelled.values().sum();
    // Older versions have fewer fields.
    assert!(!same_messages || unknown < report.sent / 10, "{unknown}");
}
