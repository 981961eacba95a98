//! Users of any operator: their actions follow from the schema and from the stored objects.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use operator_testkit::api_server::{Key, Kind};
use serde_json::{Value, json};

use super::{AnySubject, Operator, operator::spec_of, schema};
use crate::{
    actors::USER,
    draw::Draws,
    plan::{Action, Fault, Plan, Step, Then, What},
    program::NAMESPACE,
    request::Request,
    scripts::{self, Script},
    trace::Time,
    world::World,
};

/// Number of objects of each subject, so small that actions collide.
const OBJECTS: u64 = 3;

/// Time for a new object to reach its desired state. Slow requests outside the cluster take up to 30 s.
const NEW: Duration = Duration::from_secs(80);

/// Additional time from the heal to the rest, for these requests.
const SLOW: Duration = Duration::from_mins(1);

/// Finalizer of a user.
pub const HOLD: &str = "users.example/hold";

const POLICIES: &[&str] = &["Background", "Background", "Foreground", "Orphan"];

/// An action whose request depends on the stored objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meddling {
    /// Deletes an owned object.
    Delete {
        /// `Background`, `Foreground` or `Orphan`.
        policy: &'static str,
    },
    /// Removes the owner references of an owned object.
    Orphan,
    /// Changes a field that the operator wrote.
    Drift,
    /// Creates an object of an owned type without an owner, with the name of a future owned one.
    Squat,
    /// Deletes an object of an owned type that has no owner.
    Evict,
    /// Adds a finalizer to a reconciled object.
    Hold,
    /// Removes this finalizer.
    Release,
}

/// A kind of objects that users create.
struct Objects<'a> {
    operator: &'a Operator,
    subject: &'a dyn AnySubject,
    crd: &'a CustomResourceDefinition,
    spec: Value,
}

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

impl<'a> Objects<'a> {
    fn of(operator: &'a Operator, subject: &'a dyn AnySubject) -> Self {
        let crd = operator.crd(&subject.plural());
        Self {
            operator,
            subject,
            crd,
            spec: spec_of(crd),
        }
    }

    /// Sends a request about the first object.
    fn send(&self, plan: &mut Plan, at: u64, request: fn(&Self, &mut Draws, u64) -> Request) {
        let mut draw = Draws::new(at, "scripts");
        plan.act(milliseconds(at), request(self, &mut draw, 0));
    }

    fn is_namespaced(&self) -> bool {
        self.crd.spec.scope == "Namespaced"
    }

    fn api_version(&self) -> String {
        let spec = &self.crd.spec;
        format!("{}/{}", spec.group, spec.versions[0].name)
    }

    fn name(&self, number: u64) -> String {
        format!("{}-{number}", self.crd.spec.names.kind.to_lowercase())
    }

    fn all(&self) -> String {
        let namespace = if self.is_namespaced() {
            format!("namespaces/{NAMESPACE}/")
        } else {
            String::new()
        };
        let plural = &self.crd.spec.names.plural;
        format!("/apis/{}/{namespace}{plural}", self.api_version())
    }

    fn path(&self, number: u64) -> String {
        format!("{}/{}", self.all(), self.name(number))
    }

    fn draw_spec(&self, draw: &mut Draws) -> Value {
        let given = |path: &str, draw: &mut Draws| self.subject.value(path, draw);
        schema::value(&self.spec, "spec", draw, &given)
    }

    fn create(&self, draw: &mut Draws, number: u64) -> Request {
        let mut metadata = json!({ "name": self.name(number) });
        if self.is_namespaced() {
            metadata["namespace"] = NAMESPACE.into();
        }
        let body = json!({
            "apiVersion": self.api_version(), "kind": self.crd.spec.names.kind, "metadata": metadata,
            "spec": self.draw_spec(draw),
        });
        Request::create(self.all(), body)
    }

    /// Changes one field of the spec, or all.
    fn change(&self, draw: &mut Draws, number: u64) -> Request {
        let mut spec = self.draw_spec(draw);
        let fields: Vec<String> = (spec.as_object().into_iter().flatten())
            .map(|(name, _)| name.clone())
            .collect();
        if !fields.is_empty() && !draw.once_in(3) {
            let field = draw.of(&fields);
            spec = json!({ field.as_str(): spec[field.as_str()] });
        }
        Request::patch(self.path(number), json!({ "spec": spec }))
    }

    /// Sets or removes an annotation that the runtime reads.
    fn annotate(&self, number: u64, name: &str, value: &Value) -> Request {
        let annotations = json!({ format!("{}/{name}", self.operator.app_group()): value });
        let metadata = json!({ "annotations": annotations });
        Request::patch(self.path(number), json!({ "metadata": metadata }))
    }

    /// Draws the request of one action.
    fn deed(&self, draw: &mut Draws) -> Vec<Request> {
        let number = draw.below(OBJECTS);
        let policy = draw.of(POLICIES);
        let token = draw.below(1_000).to_string();
        let request = match draw.below(16) {
            0..=3 => self.create(draw, number),
            4..=8 => self.change(draw, number),
            9 | 10 => Request::delete(self.path(number), policy),
            11 => {
                let again = self.create(draw, number);
                return vec![Request::delete(self.path(number), "Background"), again];
            }
            12 => self.annotate(number, "paused", &"true".into()),
            13 => self.annotate(number, "paused", &Value::Null),
            14 => self.annotate(number, "reconcile-requested-at", &token.into()),
            _ => {
                let metadata = json!({ "annotations": { "note": token } });
                Request::patch(self.path(number), json!({ "metadata": metadata }))
            }
        };
        vec![request]
    }
}

impl Operator {
    fn app_group(&self) -> &'static str {
        crate::program::Program::app(self).group
    }

    /// Returns requests that create an object of another party, change it and delete it.
    fn of_another(draw: &mut Draws, object: &Value, what: u64) -> Request {
        let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let name = text(&object["metadata"]["name"]);
        let mut kinds = Kind::BUILT_IN.into_iter();
        let found = kinds.find(|it| kind == it.info().kind && it.api_version() == version);
        let Some(kind) = found.filter(|_| !name.is_empty()) else {
            panic!("Subject::others: {object} is not of a built-in kind, or has no name");
        };
        let path = Key::new(kind, NAMESPACE, &name).url();
        let all = path.rsplit_once('/').map_or("", |(all, _)| all).to_owned();
        let mut body = object.clone();
        body["metadata"]["namespace"] = NAMESPACE.into();
        match what {
            0 => Request::create(all, body),
            1 => Request::patch(path, object.clone()),
            _ => Request::delete(path, draw.of(&POLICIES[..2])),
        }
    }
}

/// Checks that some drawn objects of each subject are valid. Otherwise all runs would pass, without any object.
pub fn check(operator: &'static Operator) -> Result<(), String> {
    const DRAWS: usize = 50;
    for subject in &operator.subjects {
        let objects = Objects::of(operator, &**subject);
        let mut world = World::new(Plan::calm(operator, 1, 1, 1, Duration::ZERO));
        let mut draw = Draws::new(1, "check of the values");
        let created = (0..DRAWS).map(|_| objects.create(&mut draw, 0).send(&mut world, USER));
        let rejected: Vec<_> = created.take_while(|(code, _)| *code != 201).collect();
        if let (DRAWS, Some((_, answer))) = (rejected.len(), rejected.last()) {
            return Err(format!(
                "the API server rejects all objects of {} that are drawn by the schema; draw the invalid fields in Subject::values: {}",
                subject.plural(),
                answer["message"].as_str().unwrap_or_default()
            ));
        }
    }
    Ok(())
}

/// Adds the actions of users: from the beginning to the heal, and the repairs after it.
pub fn act(operator: &Operator, plan: &mut Plan, heal: Time) {
    plan.rest += SLOW;
    plan.end += SLOW;
    for subject in &operator.subjects {
        act_on(&Objects::of(operator, &**subject), plan, heal);
    }
}

fn act_on(objects: &Objects<'_>, plan: &mut Plan, heal: Time) {
    let subject = objects.subject;
    let mut draw = Draws::new(plan.seed, &format!("users of {}", subject.plural()));
    let soon = |draw: &mut Draws| milliseconds(draw.between(100, 9_000));
    for one in subject.objects_of_others(&mut draw) {
        let at = soon(&mut draw);
        let request = Operator::of_another(&mut draw, &one, 0);
        plan.act(at, request);
    }
    for number in 0..draw.between(1, OBJECTS + 1) {
        let at = soon(&mut draw);
        let request = objects.create(&mut draw, number);
        plan.act(at, request);
    }
    let pause = draw.log_uniform(500, 20_000);
    let mut at = 9_000;
    loop {
        at += draw.between(pause / 4 + 1, pause * 2);
        if milliseconds(at) >= heal {
            break;
        }
        let at = milliseconds(at);
        match draw.below(4) {
            0 => meddling(&mut draw, plan, at),
            1 if !subject.objects_of_others(&mut draw).is_empty() => {
                let all = subject.objects_of_others(&mut draw);
                let (one, what) = (draw.of(&all), draw.below(3));
                let request = Operator::of_another(&mut draw, &one, what);
                plan.act(at, request);
            }
            _ => {
                for request in objects.deed(&mut draw) {
                    plan.act(at, request);
                }
            }
        }
    }
    // Objects of others exist at the end, most pauses end, and finalizers of users are removed.
    let mut draw = Draws::new(plan.seed, &format!("repairs of {}", subject.plural()));
    let later = |draw: &mut Draws| heal + milliseconds(draw.between(15_000, 40_000));
    for one in subject.objects_of_others(&mut draw) {
        let at = later(&mut draw);
        let request = Operator::of_another(&mut draw, &one, 0);
        if !draw.once_in(4) {
            plan.act(at, request);
        }
    }
    for number in 0..OBJECTS {
        if !draw.once_in(4) {
            let at = later(&mut draw);
            plan.act(at, objects.annotate(number, "paused", &Value::Null));
        }
        let at = later(&mut draw);
        let token = format!("after the faults {number}");
        let request = objects.annotate(number, "reconcile-requested-at", &token.into());
        plan.act(at, request);
        if draw.once_in(2) {
            let at = later(&mut draw);
            let request = objects.change(&mut draw, number);
            plan.act(at, request);
        }
    }
    // More than there can be.
    for _ in 0..2 * OBJECTS {
        let at = later(&mut draw);
        plan.act(at, meddle_with(Meddling::Release, draw.draw()));
    }
    for _ in 0..draw.below(8) {
        let at = later(&mut draw);
        plan.act(at, meddle_with(Meddling::Evict, draw.draw()));
    }
    for _ in 0..draw.below(4) {
        let at = later(&mut draw);
        meddling(&mut draw, plan, at);
    }
    for _ in 0..2 * OBJECTS {
        let at = heal + milliseconds(draw.between(40_000, 41_000));
        plan.act(at, meddle_with(Meddling::Release, draw.draw()));
    }
    // A new object that no fault has affected.
    let at = plan.rest.saturating_sub(NEW);
    let request = objects.create(&mut draw, OBJECTS);
    plan.act(at, request);
}

/// Adds the actions of a script.
type Act = fn(&Objects<'_>, &mut Plan);

/// Returns the scripts: one action on an object of the first subject in each, and a change of the leader.
pub fn scripts(operator: &'static Operator) -> Vec<Script> {
    let Some(subject) = operator.subjects.first() else {
        return Vec::new();
    };
    let objects = Objects::of(operator, &**subject);
    let name = crate::program::Program::app(operator).name;
    let all: [(&str, Act); 7] = [
        ("change", |objects, plan| {
            objects.send(plan, 6_000, Objects::change);
        }),
        ("drift", |_, plan| {
            for number in 0..4 {
                let at = milliseconds(6_000 + 1_000 * number);
                plan.act(at, meddle_with(Meddling::Drift, number * 13));
            }
        }),
        ("owned objects deleted", |_, plan| {
            let policy = "Background";
            for number in 0..2 {
                let at = milliseconds(6_000 + 1_000 * number);
                plan.act(at, meddle_with(Meddling::Delete { policy }, number));
            }
        }),
        ("delete", |objects, plan| {
            plan.act(
                milliseconds(6_000),
                Request::delete(objects.path(0), "Background"),
            );
        }),
        ("delete and create again", |objects, plan| {
            plan.act(
                milliseconds(6_000),
                Request::delete(objects.path(0), "Background"),
            );
            objects.send(plan, 6_050, Objects::create);
        }),
        ("hand-over", |objects, plan| {
            objects.send(plan, 6_000, Objects::change);
            for replica in [0, 1] {
                let at = milliseconds([6_000, 10_000][replica]);
                let settings = None;
                plan.act(at, Action::Replace { replica, settings });
            }
        }),
        ("takeover", |objects, plan| {
            objects.send(plan, 6_000, Objects::change);
            for replica in [0, 1] {
                let then = Then::Pod(milliseconds(2_000));
                let at = milliseconds([6_400, 14_400][replica]);
                plan.fault(at, Fault::Crash { replica, then }, Time::ZERO);
            }
        }),
    ];
    let script = |(what, act): (&str, Act)| {
        let mut plan = Plan {
            program: operator,
            settings: scripts::settings(),
            rest: milliseconds(110_000),
            ..Plan::calm(operator, 1, 2, 1, milliseconds(120_000))
        };
        let mut draw = Draws::new(plan.seed, "scripts");
        for one in subject.objects_of_others(&mut draw) {
            let request = Operator::of_another(&mut draw, &one, 0);
            plan.act(milliseconds(500), request);
        }
        objects.send(&mut plan, 1_000, Objects::create);
        act(&objects, &mut plan);
        plan.steps.push(Step {
            at: scripts::HEAL,
            what: What::Heal,
        });
        Script {
            name: format!("{name}, {what}"),
            plan,
            is_prompt: false,
        }
    };
    all.map(script).into()
}

/// Returns a change of the object of the scripts.
pub fn change(operator: &Operator) -> Option<Action> {
    let objects = Objects::of(operator, &**operator.subjects.first()?);
    let mut draw = Draws::new(2, "a change");
    Some(objects.change(&mut draw, 0).into())
}

fn meddle_with(what: Meddling, pick: u64) -> Action {
    Action::Meddle { what, pick }
}

fn meddling(draw: &mut Draws, plan: &mut Plan, at: Time) {
    let policy = draw.of(POLICIES);
    let what = draw.of(&[
        Meddling::Delete { policy },
        Meddling::Delete { policy },
        Meddling::Orphan,
        Meddling::Drift,
        Meddling::Drift,
        Meddling::Drift,
        Meddling::Squat,
        Meddling::Evict,
        Meddling::Hold,
        Meddling::Release,
    ]);
    plan.act(at, meddle_with(what, draw.draw()));
}

/// Carries out an action on the `pick`-th object that it may concern. Returns the status code, or 404 if there is none.
pub fn meddle(world: &mut World, what: Meddling, pick: u64) -> u16 {
    request(world, what, pick).map_or(404, |request| request.send(world, USER).0)
}

/// Returns an element, by a number of any size.
fn picked<T>(all: Vec<T>, pick: u64) -> Option<T> {
    let count = u64::try_from(all.len()).ok().filter(|count| *count > 0)?;
    let index = usize::try_from(pick % count).ok()?;
    all.into_iter().nth(index)
}

fn is_controlled(object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners
        .into_iter()
        .flatten()
        .any(|it| it["controller"] == true)
}

fn request(world: &World, what: Meddling, pick: u64) -> Option<Request> {
    let declared = world.plan.program.declared();
    let of = |kinds: &mut dyn Iterator<Item = operator_runtime::Kind>| -> Vec<(Key, Value)> {
        let kinds = kinds.filter_map(|kind| stored(world, kind));
        let objects = kinds.flat_map(|kind| world.store.list(kind, None));
        objects
            .map(|(key, object)| (key.clone(), Value::clone(object)))
            .collect()
    };
    let mut owned = of(&mut declared.owned.iter().copied());
    let mut primaries = of(&mut declared.primaries.iter().copied());
    let controlled = |it: &(Key, Value)| is_controlled(&it.1);
    let holds = |it: &(Key, Value)| {
        let all = it.1["metadata"]["finalizers"].as_array();
        all.is_some_and(|all| all.iter().any(|it| it == HOLD))
    };
    match what {
        Meddling::Evict => owned.retain(|it| !controlled(it)),
        Meddling::Release => primaries.retain(holds),
        _ => owned.retain(controlled),
    }
    match what {
        Meddling::Hold | Meddling::Release => {
            let (key, object) = picked(primaries, pick)?;
            let all = object["metadata"]["finalizers"].as_array();
            let all = all.into_iter().flatten().filter(|it| *it != HOLD).cloned();
            let hold = (what == Meddling::Hold).then(|| json!(HOLD));
            let all: Vec<Value> = all.chain(hold).collect();
            let version = &object["metadata"]["resourceVersion"];
            let metadata = json!({ "finalizers": all, "resourceVersion": version });
            Some(Request::patch(key.url(), json!({ "metadata": metadata })))
        }
        Meddling::Evict => Some(Request::delete(picked(owned, pick)?.0.url(), "Background")),
        Meddling::Delete { policy } => Some(Request::delete(picked(owned, pick)?.0.url(), policy)),
        Meddling::Orphan => {
            let metadata = json!({ "ownerReferences": null });
            let path = picked(owned, pick)?.0.url();
            Some(Request::patch(path, json!({ "metadata": metadata })))
        }
        Meddling::Drift => drift(world, picked(owned, pick)?, pick),
        Meddling::Squat => {
            let (key, _) = picked(owned, pick)?;
            let (mut body, names) = (written(world, &key)?, &world.plan.program.crds());
            let kind = picked(names.iter().collect(), pick / 7)?;
            let kind = kind.spec.names.kind.to_lowercase();
            let name = format!("{kind}-{}", pick / 11 % (OBJECTS + 1));
            body["metadata"]["name"] = name.into();
            body["metadata"].as_object_mut()?.remove("ownerReferences");
            let path = key.url();
            let all = path.rsplit_once('/')?.0.to_owned();
            Some(Request::create(all, body))
        }
    }
}

/// Returns the kind of the store.
pub(crate) fn stored(world: &World, kind: operator_runtime::Kind) -> Option<Kind> {
    let custom = world.store.custom_kinds().iter();
    let mut kinds = Kind::BUILT_IN.iter().chain(custom).copied();
    kinds.find(|it| (it.info().group, it.info().plural) == (kind.group, kind.plural))
}

/// Returns the manifest that a replica created this object with.
fn written(world: &World, key: &Key) -> Option<Value> {
    let mut calls = world.trace.calls.iter().rev();
    let plural = key.kind.info().plural;
    let call = calls.find(|call| {
        let is_it = call.verb == "create" && call.resource == plural;
        is_it && call.body["metadata"]["name"] == *key.name
    })?;
    Some(call.body.clone())
}

/// Changes a field of the manifest.
fn drift(world: &World, (key, object): (Key, Value), pick: u64) -> Option<Request> {
    let mut fields = Vec::new();
    let manifest = written(world, &key)?;
    for (name, value) in manifest.as_object()? {
        if !matches!(&**name, "apiVersion" | "kind" | "metadata") {
            leaves(value, format!("/{name}"), &mut fields);
        }
    }
    // A field that the store does not have was changed before.
    fields.retain(|path| object.pointer(path).is_some());
    let path = picked(fields, pick / 13)?;
    let mut changed = object;
    let field = changed.pointer_mut(&path)?;
    *field = match field.take() {
        Value::String(text) => format!("{text}-drift").into(),
        Value::Bool(is) => (!is).into(),
        number => (number.as_i64()? + 1).into(),
    };
    let first = path.split('/').nth(1)?;
    Some(Request::patch(key.url(), json!({ first: changed[first] })))
}

/// Collects the pointers of all strings, numbers and booleans.
fn leaves(value: &Value, path: String, all: &mut Vec<String>) {
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                leaves(field, format!("{path}/{}", escaped(name)), all);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                leaves(item, format!("{path}/{index}"), all);
            }
        }
        Value::Null => {}
        _ => all.push(path),
    }
}
