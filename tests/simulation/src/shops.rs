//! The users of the operator with an optional kind, the administrators who install and remove this kind, and the faults that the
//! operator meets.

mod judge;

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use operator_runtime::{App, Builder};
use operator_simulation::{
    Draws,
    judge::{Case, Violation, rest},
    outside::Place,
    plan::{Action, Machine, Plan, Step, What},
    program::{NAMESPACE, Program},
    request::Request,
    scripts::{self, Script},
    trace::Time,
};
use operator_testkit::api_server::{Now, Store};
use serde_json::{Value, json};

/// Example of the runtime with a kind that may not be installed.
#[allow(dead_code, clippy::pedantic, reason = "a program of its own")]
#[path = "../../../crates/runtime/examples/optional_kind.rs"]
mod optional_kind;

/// The class that exists. No watch reports another one.
pub const CLASS: &str = "standard";

/// Resource of the optional kind.
pub const MONITORS: &str = "servicemonitors";

/// Number of Shops, so small that actions collide.
const SHOPS: u64 = 3;

/// Time for a new Shop to reach its desired state.
const NEW: Duration = Duration::from_secs(25);

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The operator with an optional kind.
#[derive(Debug)]
pub struct Shops;

impl Program for Shops {
    fn app(&self) -> &'static App {
        &optional_kind::APP
    }

    fn crds(&self) -> Vec<CustomResourceDefinition> {
        optional_kind::crds()
    }

    fn build(&self, builder: &mut Builder, _: &Place<'_>) {
        optional_kind::build(builder, optional_kind::NoSettings {});
    }

    fn users(&self, plan: &mut Plan, heal: Time) {
        users(plan, heal);
    }

    fn judge(&self, case: &Case<'_>, found: &mut Vec<Violation>) {
        judge::settled(case, found);
        rest::at_rest(case, found);
        judge::stay_ready(case, found);
        judge::are_paced(case, found);
        judge::are_not_written(case, found);
    }

    fn scripts(&'static self) -> Vec<Script> {
        vec![Script {
            name: "optional kind".to_owned(),
            plan: script(),
            is_prompt: true,
        }]
    }

    fn change(&self) -> Option<Action> {
        let request = Request::delete(path_of("configmaps", &name(0)), "Background");
        Some(request.into())
    }

    fn prepare(&self, store: &mut Store, now: Now) {
        store.create_storage_class(now, CLASS);
        store.declare_kind(&definition());
    }
}

/// Returns the CRD of the optional kind.
pub fn definition() -> Value {
    let text = json!({ "type": "string" });
    let object = |properties: Value| json!({ "type": "object", "properties": properties });
    let selector = object(json!({ "matchLabels": object(json!({ "shop": text })) }));
    let endpoints = json!({ "type": "array", "items": object(json!({ "port": text })) });
    let spec = object(json!({ "selector": selector, "endpoints": endpoints }));
    let schema = object(json!({ "spec": spec, "status": object(json!({})) }));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{MONITORS}.monitoring.coreos.com") },
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": {
                "kind": "ServiceMonitor", "listKind": "ServiceMonitorList", "plural": MONITORS,
                "singular": "servicemonitor",
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": { "status": {} }, "schema": { "openAPIV3Schema": schema },
            }],
        },
    })
}

/// Adds the actions of users: from the beginning to the heal, and a few after it.
fn users(plan: &mut Plan, heal: Time) {
    let mut draw = Draws::new(plan.seed, "users of shops");
    let soon = |draw: &mut Draws| milliseconds(draw.between(100, 9_000));
    if draw.once_in(2) {
        plan.act(soon(&mut draw), install());
    }
    for number in 0..draw.between(1, SHOPS + 1) {
        let at = soon(&mut draw);
        let request = create(&mut draw, number);
        plan.act(at, request);
    }
    let pause = draw.log_uniform(500, 20_000);
    let mut at = 9_000;
    loop {
        at += draw.between(pause / 4 + 1, pause * 2);
        if milliseconds(at) >= heal {
            break;
        }
        let request = deed(&mut draw);
        plan.act(milliseconds(at), request);
    }
    // The kind may be installed at the end or not.
    let mut draw = Draws::new(plan.seed, "shops afterwards");
    let at = heal + milliseconds(draw.between(15_000, 40_000));
    match draw.below(3) {
        0 => plan.act(at, install()),
        1 => plan.act(at, uninstall()),
        _ => {}
    }
    // A new Shop that no fault has affected.
    let at = plan.rest.saturating_sub(NEW);
    plan.act(at, create_with(SHOPS, CLASS));
}

/// Returns the script: the kind appears, vanishes and appears again.
fn script() -> Plan {
    let mut plan = Plan {
        seed: 1,
        program: &Shops,
        settings: scripts::settings(),
        replicas: vec![Machine::SOUND; 2],
        servers: 1,
        fencing: false,
        steps: Vec::new(),
        rest: milliseconds(50_000),
        end: milliseconds(60_000),
    };
    for (at, request) in [
        (1_000, create_with(0, CLASS)),
        (6_000, install()),
        (9_000, uninstall()),
        (11_500, create_with(1, CLASS)),
        (13_000, install()),
    ] {
        plan.act(milliseconds(at), request);
    }
    plan.steps.push(Step {
        at: scripts::HEAL,
        what: What::Heal,
    });
    plan
}

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Draws the request of one action.
fn deed(draw: &mut Draws) -> Request {
    let name = name(draw.below(SHOPS));
    let policy = draw.of(&["Background", "Background", "Foreground", "Orphan"]);
    let class = draw.of(&[CLASS, CLASS, "missing"]);
    let number = draw.below(SHOPS);
    match draw.below(14) {
        0..3 => install(),
        3..5 => uninstall(),
        5..8 => create(draw, number),
        8 => Request::delete(path_of("shops", &name), policy),
        9 => Request::patch(
            path_of("shops", &name),
            json!({ "spec": { "storage": class } }),
        ),
        10 => Request::delete(path_of("configmaps", &name), policy),
        11 => Request::delete(path_of(MONITORS, &name), policy),
        12 => Request::patch(
            path_of(MONITORS, &name),
            json!({ "spec": { "endpoints": [] } }),
        ),
        _ => Request::patch(
            path_of("configmaps", &name),
            json!({ "data": { "storage": "other" } }),
        ),
    }
}

fn name(number: u64) -> String {
    format!("shop-{number}")
}

/// Returns the path of an object.
fn path_of(plural: &str, name: &str) -> String {
    let group = match plural {
        "shops" => "apis/example.com/v1",
        MONITORS => "apis/monitoring.coreos.com/v1",
        _ => "api/v1",
    };
    format!("/{group}/namespaces/{NAMESPACE}/{plural}/{name}")
}

fn install() -> Request {
    Request::create(CRDS.to_owned(), definition())
}

fn uninstall() -> Request {
    let name = format!("{MONITORS}.monitoring.coreos.com");
    Request::delete(format!("{CRDS}/{name}"), "Background")
}

fn create(draw: &mut Draws, number: u64) -> Request {
    let class = draw.of(&[CLASS, CLASS, CLASS, "missing"]);
    create_with(number, class)
}

fn create_with(number: u64, class: &str) -> Request {
    let body = json!({
        "apiVersion": "example.com/v1", "kind": "Shop",
        "metadata": { "name": name(number), "namespace": NAMESPACE }, "spec": { "storage": class },
    });
    let path = path_of("shops", "");
    Request::create(path.trim_end_matches('/').to_owned(), body)
}
