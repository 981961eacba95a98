//! The users of the operator of three kinds, and the faults that it meets.

mod grants;
mod installations;
mod judge;

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use operator_runtime::{App, Builder};
use operator_simulation::{
    Draws,
    judge::{Case, Violation, pauses, rest},
    outside::Place,
    plan::{Calls, Fault, Happens, Plan},
    program::{NAMESPACE, Program},
    request::Request,
    trace::Time,
};
use serde_json::{Value, json};

/// Example of the runtime with three kinds: Databases, their classes and their backups.
#[allow(dead_code, clippy::pedantic, reason = "a program of its own")]
#[path = "../../../crates/runtime/examples/several_kinds.rs"]
mod several_kinds;

/// API group of the kinds, and of the annotations for the runtime.
pub const GROUP: &str = "example.com";

/// Numbers of objects, so small that actions collide.
const DATABASES: u64 = 3;
const CLASSES: u64 = 2;
const SECRETS: u64 = 2;
const BACKUPS: u64 = 2;

/// Namespace of other Secrets. Databases may read the granted Secrets.
pub const VAULT: &str = "vault";

/// Values of the annotation `grant-to`. The first half grants the access to the Databases.
const GRANTS: &[Option<&str>] = &[
    Some(NAMESPACE),
    Some("*"),
    Some("other, objects"),
    Some("other"),
    Some(""),
    None,
];

/// Time for a new Database to reach its desired state.
const NEW: Duration = Duration::from_secs(25);

/// The operator of Databases, their classes and their backups.
#[derive(Debug)]
pub struct Databases;

/// The operator of the Databases, in two installations.
#[derive(Debug)]
pub struct Installations;

/// Name of the installation in every second place. The default installation is in the others.
pub const CANARY: &str = "canary";

/// `default` is for Events about cluster-scoped objects.
const NAMESPACES: &[&str] = &["default", VAULT];

impl Program for Databases {
    fn app(&self) -> &'static App {
        &several_kinds::APP
    }

    fn crds(&self) -> Vec<CustomResourceDefinition> {
        several_kinds::crds()
    }

    fn build(&self, builder: &mut Builder, _: &Place<'_>) {
        several_kinds::build(builder, several_kinds::NoSettings {});
    }

    fn users(&self, plan: &mut Plan, heal: Time) {
        users(plan, heal);
    }

    fn judge(&self, case: &Case<'_>, found: &mut Vec<Violation>) {
        judge::settled(case, found);
        rest::at_rest(case, found);
        rest::share_watches(case, found);
        pauses::hold(case, found);
        grants::are_kept(case, found);
        installations::write_their_own(case, found);
        installations::are_followed(case, found);
    }

    fn namespaces(&self) -> &'static [&'static str] {
        NAMESPACES
    }
}

impl Program for Installations {
    fn app(&self) -> &'static App {
        Databases.app()
    }

    fn crds(&self) -> Vec<CustomResourceDefinition> {
        Databases.crds()
    }

    fn build(&self, builder: &mut Builder, place: &Place<'_>) {
        Databases.build(builder, place);
    }

    fn users(&self, plan: &mut Plan, heal: Time) {
        users(plan, heal);
        moves(plan, heal);
    }

    fn judge(&self, case: &Case<'_>, found: &mut Vec<Violation>) {
        Databases.judge(case, found);
    }

    fn installations(&self) -> &'static [&'static str] {
        &["", CANARY]
    }

    fn namespaces(&self) -> &'static [&'static str] {
        NAMESPACES
    }
}

/// Adds the actions of users: from the beginning to the heal, and the repairs after it.
fn users(plan: &mut Plan, heal: Time) {
    let mut draw = Draws::new(plan.seed, "users of databases");
    let soon = |draw: &mut Draws| milliseconds(draw.between(100, 9_000));
    for secret in secrets() {
        let at = soon(&mut draw);
        let request = create_secret(&mut draw, secret);
        plan.act(at, request);
    }
    for number in 0..CLASSES {
        let replicas = draw.between(1, 4);
        plan.act(soon(&mut draw), create_class(number, replicas));
    }
    for number in 0..draw.between(1, DATABASES + 1) {
        let at = soon(&mut draw);
        let request = create_database(&mut draw, number);
        plan.act(at, request);
    }
    let pause = draw.log_uniform(500, 20_000);
    let mut at = 9_000;
    loop {
        at += draw.between(pause / 4 + 1, pause * 2);
        if milliseconds(at) >= heal {
            break;
        }
        for request in deed(&mut draw) {
            plan.act(milliseconds(at), request);
        }
    }
    pause_again(plan, heal);
    // Classes and Secrets exist at the end. Most pauses end.
    let mut draw = Draws::new(plan.seed, "repairs of databases");
    let later = |draw: &mut Draws| heal + milliseconds(draw.between(15_000, 40_000));
    for secret in secrets() {
        let at = later(&mut draw);
        let request = create_secret(&mut draw, secret);
        plan.act(at, request);
    }
    for secret in secrets().filter(|(namespace, _)| *namespace == VAULT) {
        let at = later(&mut draw);
        let request = grant(&mut draw, secret);
        plan.act(at, request);
    }
    for number in 0..CLASSES {
        let replicas = draw.between(1, 4);
        plan.act(later(&mut draw), create_class(number, replicas));
    }
    for path in primaries() {
        if !draw.once_in(4) {
            plan.act(later(&mut draw), annotate(path, "paused", &Value::Null));
        }
    }
    // A new Database that no fault has affected.
    let at = plan.rest.saturating_sub(NEW);
    let request = create_database(&mut draw, DATABASES);
    plan.act(at, request);
}

/// Users move the objects between the installations, and change some of them at the same time. Most moves are back and forth.
fn moves(plan: &mut Plan, heal: Time) {
    const LABELS: &[Option<&str>] = &[None, Some(""), Some(CANARY), Some(CANARY)];
    let mut draw = Draws::new(plan.seed, "moves of databases");
    let backups =
        (0..BACKUPS).map(|number| format!("{}/{}", path_of("backups"), backup_name(number)));
    let owned =
        (0..DATABASES).map(|number| format!("{}/{}", path_of("backups"), database_name(number)));
    let mut all: Vec<_> = primaries().chain(backups).chain(owned).collect();
    let moved = |path: &str, to: Option<&str>| {
        let labels = json!({ "labels": { format!("{GROUP}/installation"): to } });
        Request::patch(path.to_owned(), json!({ "metadata": labels }))
    };
    let pause = draw.log_uniform(300, 10_000);
    let mut at = 9_000;
    loop {
        at += draw.between(pause / 4 + 1, pause * 2);
        if milliseconds(at) >= heal {
            break;
        }
        let database = draw.below(DATABASES);
        let path = if draw.once_in(3) {
            draw.of(&all)
        } else {
            database_path(database)
        };
        let to = draw.of(LABELS);
        plan.act(milliseconds(at), moved(&path, to));
        if path == database_path(database) && draw.once_in(2) {
            let target = format!("target-{}", draw.below(5));
            let class = class_name(draw.below(CLASSES));
            let spec = json!({ "spec": { "class": class, "backup": target } });
            let later = at + draw.below(100);
            plan.act(milliseconds(later), Request::patch(path, spec));
        }
    }
    // A Database moves while its reconcile waits for a response, and has more to write.
    let mut draw = Draws::new(plan.seed, "moves in between");
    let mut at = 12_000;
    while milliseconds(at + 5_000) < heal {
        let path = database_path(draw.below(DATABASES));
        let late = Happens::AnswerLate(milliseconds(draw.between(200, 1_500)));
        let of = Calls::of("patch", "deployments");
        let (nth, happens) = (Some(1), late);
        plan.fault(
            milliseconds(at),
            Fault::Call { of, nth, happens },
            Duration::ZERO,
        );
        for (class, wait) in [(0, 10), (1, 2_000)] {
            let target = format!("target-{}", draw.below(50));
            let spec = json!({ "spec": { "class": class_name(class), "backup": target } });
            plan.act(milliseconds(at + wait), Request::patch(path.clone(), spec));
            let to = draw.of(LABELS);
            let later = at + wait + draw.between(20, 150);
            plan.act(milliseconds(later), moved(&path, to));
        }
        at += draw.between(5_000, 30_000);
    }
    all.push(database_path(DATABASES));
    let mut draw = Draws::new(plan.seed, "moves of databases afterwards");
    for path in all {
        let at = heal + milliseconds(draw.between(15_000, 40_000));
        let to = draw.of(LABELS);
        plan.act(at, moved(&path, to));
    }
}

/// In half of the seeds, a user ends the pauses of changed Databases, and begins them again while the reconcile writes.
fn pause_again(plan: &mut Plan, heal: Time) {
    let mut draw = Draws::new(plan.seed, "pauses of databases");
    if draw.once_in(2) {
        return;
    }
    let mut at = milliseconds(10_000);
    loop {
        at += milliseconds(draw.between(4_000, 20_000));
        if at + milliseconds(3_000) >= heal {
            return;
        }
        let path = database_path(draw.below(DATABASES));
        let pause = |value| annotate(path.clone(), "paused", &value);
        let class = json!({ "class": class_name(draw.below(CLASSES)), "backup": "another" });
        let (ends, again) = (milliseconds(2_000), milliseconds(draw.between(5, 120)));
        plan.act(at, pause("true".into()));
        plan.act(
            at + ends / 2,
            Request::patch(path.clone(), json!({ "spec": class })),
        );
        plan.act(at + ends, pause(Value::Null));
        plan.act(at + ends + again, pause("true".into()));
    }
}

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Draws the requests of one action.
fn deed(draw: &mut Draws) -> Vec<Request> {
    let (database, class) = (draw.below(DATABASES), draw.below(CLASSES));
    let all: Vec<_> = secrets().collect();
    let (secret, backup) = (draw.of(&all), draw.below(BACKUPS));
    let replicas = draw.between(1, 5);
    let all: Vec<String> = primaries().collect();
    let one = draw.of(&all);
    let token = draw.below(1_000).to_string();
    let content = content(draw, secret);
    let policy = draw.of(&["Background", "Background", "Foreground", "Orphan"]);
    let spec = |spec: Value| Request::patch(database_path(database), json!({ "spec": spec }));
    let child =
        |plural: &str, name: String| Request::delete(format!("{}/{name}", path_of(plural)), policy);
    let request = match draw.below(27) {
        0 | 1 => spec(json!({ "class": class_name(class) })),
        2 => spec(json!({ "password": reference(secret) })),
        3 | 4 => spec(json!({ "backup": format!("target-{replicas}") })),
        5 => spec(json!({ "backup": null })),
        6 => Request::delete(database_path(database), policy),
        7 => {
            let again = create_database(draw, database);
            return vec![
                Request::delete(database_path(database), "Background"),
                again,
            ];
        }
        8 | 9 => create_database(draw, database),
        10 | 11 => Request::patch(
            class_path(class),
            json!({ "spec": { "replicas": replicas } }),
        ),
        12 => Request::delete(class_path(class), policy),
        13 => create_class(class, replicas),
        14 => Request::patch(secret_path(secret), json!({ "stringData": content })),
        15 => Request::delete(secret_path(secret), policy),
        16 => create_secret(draw, secret),
        17 => match draw.below(4) {
            0 => child("deployments", database_name(database)),
            1 => child("services", database_name(database)),
            2 => child("configmaps", class_name(class)),
            _ => child("jobs", database_name(database)),
        },
        18 => Request::patch(
            format!("{}/{}", path_of("deployments"), database_name(database)),
            json!({ "spec": { "replicas": replicas } }),
        ),
        19 => annotate(one, "paused", &"true".into()),
        20 => annotate(one, "paused", &Value::Null),
        21 => annotate(one, "reconcile-requested-at", &token.into()),
        22 => create_backup(backup, database),
        23 | 24 => grant(draw, (VAULT, secret.1)),
        25 => {
            // A new content together with a new grant, or without one.
            let mut change = json!({ "stringData": content });
            change["metadata"] = granted(draw.of(GRANTS));
            Request::patch(secret_path((VAULT, secret.1)), change)
        }
        _ => Request::delete(
            format!("{}/{}", path_of("backups"), backup_name(backup)),
            policy,
        ),
    };
    vec![request]
}

/// Returns the paths of all Databases and classes.
fn primaries() -> impl Iterator<Item = String> {
    let databases = (0..DATABASES).map(database_path);
    databases.chain((0..CLASSES).map(class_path))
}

fn database_name(number: u64) -> String {
    format!("database-{number}")
}

fn class_name(number: u64) -> String {
    format!("class-{number}")
}

/// Namespace and number of a Secret.
type Secret = (&'static str, u64);

fn secrets() -> impl Iterator<Item = Secret> {
    let numbers = || 0..SECRETS;
    numbers()
        .map(|number| (NAMESPACE, number))
        .chain(numbers().map(|number| (VAULT, number)))
}

fn secret_name(number: u64) -> String {
    format!("secret-{number}")
}

fn secret_path((namespace, number): Secret) -> String {
    format!(
        "/api/v1/namespaces/{namespace}/secrets/{}",
        secret_name(number)
    )
}

/// Returns a reference to a Secret. The default namespace is that of the Database.
fn reference((namespace, number): Secret) -> Value {
    let mut reference = json!({ "name": secret_name(number), "namespace": null });
    if namespace != NAMESPACE {
        reference["namespace"] = namespace.into();
    }
    reference
}

/// Returns a password that no other Secret has.
fn content(draw: &mut Draws, (namespace, number): Secret) -> Value {
    let token = draw.below(1_000);
    json!({ "password": format!("{namespace}-{number}-{token}") })
}

fn granted(to: Option<&str>) -> Value {
    json!({ "annotations": { format!("{GROUP}/grant-to"): to } })
}

/// Sets or removes the grant of a Secret.
fn grant(draw: &mut Draws, secret: Secret) -> Request {
    let metadata = granted(draw.of(GRANTS));
    Request::patch(secret_path(secret), json!({ "metadata": metadata }))
}

fn backup_name(number: u64) -> String {
    format!("backup-{number}")
}

/// Returns the path of the objects of a resource.
fn path_of(plural: &str) -> String {
    match plural {
        "databaseclasses" => format!("/apis/{GROUP}/v1/{plural}"),
        "databases" | "backups" => format!("/apis/{GROUP}/v1/namespaces/{NAMESPACE}/{plural}"),
        "deployments" => format!("/apis/apps/v1/namespaces/{NAMESPACE}/{plural}"),
        "jobs" => format!("/apis/batch/v1/namespaces/{NAMESPACE}/{plural}"),
        _ => format!("/api/v1/namespaces/{NAMESPACE}/{plural}"),
    }
}

fn database_path(number: u64) -> String {
    format!("{}/{}", path_of("databases"), database_name(number))
}

fn class_path(number: u64) -> String {
    format!("{}/{}", path_of("databaseclasses"), class_name(number))
}

fn custom(plural: &str, kind: &str, name: &str, spec: &Value) -> Request {
    let mut body = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": { "name": name }, "spec": spec,
    });
    if plural != "databaseclasses" {
        body["metadata"]["namespace"] = NAMESPACE.into();
    }
    Request::create(path_of(plural), body)
}

fn create_database(draw: &mut Draws, number: u64) -> Request {
    let mut spec = json!({
        "class": class_name(draw.below(CLASSES)),
        "password": reference(draw.of(&secrets().collect::<Vec<_>>())),
    });
    if spec["password"]["namespace"].is_null() {
        spec["password"] = json!({ "name": spec["password"]["name"] });
    }
    if draw.once_in(2) {
        spec["backup"] = "target".into();
    }
    custom("databases", "Database", &database_name(number), &spec)
}

fn create_class(number: u64, replicas: u64) -> Request {
    let spec = json!({ "replicas": replicas, "namespace": NAMESPACE });
    custom(
        "databaseclasses",
        "DatabaseClass",
        &class_name(number),
        &spec,
    )
}

fn create_backup(number: u64, database: u64) -> Request {
    let spec = json!({ "database": database_name(database), "target": "by-hand" });
    custom("backups", "Backup", &backup_name(number), &spec)
}

fn create_secret(draw: &mut Draws, secret: Secret) -> Request {
    let (namespace, number) = secret;
    let mut metadata = json!({ "name": secret_name(number), "namespace": namespace });
    if let Some(to) = draw.of(GRANTS).filter(|_| namespace == VAULT) {
        metadata["annotations"] = json!({ format!("{GROUP}/grant-to"): to });
    }
    let body = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata,
        "stringData": content(draw, secret),
    });
    let path = format!("/api/v1/namespaces/{namespace}/secrets");
    Request::create(path, body)
}

fn annotate(path: String, name: &str, value: &Value) -> Request {
    let annotations = json!({ format!("{GROUP}/{name}"): value });
    Request::patch(path, json!({ "metadata": { "annotations": annotations } }))
}
