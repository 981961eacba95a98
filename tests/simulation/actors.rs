//! Those who are no replicas: users, the Deployment controller, the namespace controller, the garbage collector. What they
//! ask is answered at once, by the first API server that is there.

mod namespace;

use std::{cmp::Ordering, collections::BTreeMap};

use serde_json::{Value, json};

use super::{
    api::{Key, Kind, Method},
    plan::{Action, Fault},
    trace::Time,
    users,
    world::{FOOS, World, at},
};

/// The user who has Foos.
pub const USER: &str = "alice";
const DEPLOYMENT_CONTROLLER: &str = "system:serviceaccount:kube-system:deployment-controller";
pub const GARBAGE_COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

const REVISION: &str = "deployment.kubernetes.io/revision";

/// What they know.
#[derive(Default)]
pub struct Actors {
    /// The reconciles that go on, by their spans' numbers: where they are in the trace.
    pub spans: BTreeMap<u64, usize>,
    /// The store's version when there was nothing left to do.
    at_rest: Option<u64>,
    /// When the next pod of a Deployment comes or goes, by the Deployment's UID.
    rollouts: BTreeMap<String, Time>,
    /// Since when a rollout gets no further, by the Deployment's UID.
    hung: BTreeMap<String, Time>,
    /// What pods are made from, by the Deployment's UID, and how many there are of another make.
    templates: BTreeMap<String, (Value, i64)>,
    namespace: namespace::Namespace,
}

/// How long a pod takes.
const POD: Time = Time::from_millis(300);

/// `progressDeadlineSeconds`
const DEADLINE: Time = Time::from_secs(10);

impl Actors {
    pub fn tick(&mut self, world: &mut World) {
        if self.at_rest == Some(world.store.version()) {
            return;
        }
        let before = world.store.version();
        let waits = self.roll_out(world);
        let is_idle = world.is_going_on(|fault| matches!(fault, Fault::NoCollector));
        let collected = !is_idle && collect(world);
        let is_changing = self.namespace.tick(world);
        let is_at_rest = !waits && !collected && !is_changing && world.store.version() == before;
        self.at_rest = is_at_rest.then_some(before);
    }

    /// There may be something to do though nothing was written.
    pub fn wake(&mut self) {
        self.at_rest = None;
    }

    /// The Deployment controller's; true if it waits for something.
    fn roll_out(&mut self, world: &mut World) -> bool {
        let all = world.store.list(Kind::Deployment, None);
        let all: Vec<_> = all
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        let mut waits = false;
        for (key, object) in all {
            if object["metadata"]["deletionTimestamp"].is_string() {
                continue;
            }
            let path = path_of(&key);
            if object["metadata"]["annotations"][REVISION].is_null() {
                let revision = json!({ "metadata": { "annotations": { REVISION: "1" } } });
                world.request(DEPLOYMENT_CONTROLLER, &Method::PATCH, &path, &revision);
            }
            let status = &object["status"];
            let count = |field: &str| status[field].as_i64().unwrap_or_default();
            let wanted = object["spec"]["replicas"].as_i64().unwrap_or(1);
            let generation = &object["metadata"]["generation"];
            let is_seen = status["observedGeneration"] == *generation;
            let available = count("availableReplicas");
            let uid = object["metadata"]["uid"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let template = &object["spec"]["template"];
            let (known, old) =
                (self.templates.entry(uid.clone())).or_insert_with(|| (template.clone(), 0));
            if *known != *template {
                (*known, *old) = (template.clone(), available);
            }
            *old = available.min(*old);
            let (old, ready) = (*old, available - *old);
            let hangs = ready < wanted && world.is_going_on(|fault| {
                matches!(fault, Fault::NoPods { deployment } if users::deployment_name(*deployment) == key.name)
            });
            if !hangs {
                self.hung.remove(&uid);
            }
            let has_given_up = has_given_up(&object);
            let since = hangs.then(|| *self.hung.entry(uid.clone()).or_insert(world.now));
            let gives_up = since.is_some_and(|since| world.now >= since + DEADLINE);
            waits |= hangs && !gives_up;
            let (next, kept) = step((ready, old), wanted, hangs);
            let counted = (count("updatedReplicas"), count("replicas"));
            let is_counted = (next, kept) == (ready, old) && counted == pods((ready, old), wanted);
            if is_seen && is_counted && gives_up == has_given_up {
                continue;
            }
            let due = *self.rollouts.entry(uid.clone()).or_insert(world.now + POD);
            // That it has seen a generation it says at once.
            let is_due = world.now >= due;
            if !is_due {
                waits = true;
            }
            if !is_due && is_seen {
                continue;
            }
            let (next, kept) = if is_due { (next, kept) } else { (ready, old) };
            let (updated, replicas) = pods((next, kept), wanted);
            let available = next + kept;
            let number = |count: i64| {
                if count == 0 {
                    Value::Null
                } else {
                    count.into()
                }
            };
            let mut counts = json!({ "status": {
                "observedGeneration": generation,
                "replicas": number(replicas), "updatedReplicas": number(updated),
                "readyReplicas": number(available), "availableReplicas": number(available),
                "unavailableReplicas": number(replicas - available),
            }});
            if gives_up != has_given_up {
                counts["status"]["conditions"] = progressing(!gives_up, world.now);
            }
            let status = format!("{path}/status");
            let (code, _) = world.request(DEPLOYMENT_CONTROLLER, &Method::PATCH, &status, &counts);
            if is_due {
                self.rollouts.remove(&uid);
            }
            if code == 200 {
                self.templates.insert(uid, (template.clone(), kept));
            }
            waits = true;
        }
        waits
    }
}

/// How many pods of the new make are available next, and how many there are of the old one: there is one more than there
/// should be, and then one of the old ones goes.
fn step((new, old): (i64, i64), wanted: i64, hangs: bool) -> (i64, i64) {
    match new.cmp(&wanted) {
        _ if old > 0 && new + old > wanted => (new, old - 1),
        Ordering::Less if !hangs => (new + 1, old),
        Ordering::Greater => (new - 1, old),
        _ => (new, old),
    }
}

/// How many pods there are of the new make, available or not, and how many in all.
fn pods((new, old): (i64, i64), wanted: i64) -> (i64, i64) {
    let missing = (wanted - new).max(0);
    let coming = if old == 0 { missing } else { missing.min(1) };
    (new + coming, new + coming + old)
}

/// Whether it says that its rollout gets no further.
pub fn has_given_up(deployment: &Value) -> bool {
    let conditions = deployment["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        condition["type"] == "Progressing" && condition["reason"] == "ProgressDeadlineExceeded"
    })
}

fn progressing(is: bool, now: Time) -> Value {
    let (status, reason) = if is {
        ("True", "ReplicaSetUpdated")
    } else {
        ("False", "ProgressDeadlineExceeded")
    };
    let now = at(now).wall.to_string();
    json!([{
        "type": "Progressing", "status": status, "reason": reason, "message": "",
        "lastUpdateTime": now, "lastTransitionTime": now,
    }])
}

/// The garbage collector's: what has an owner that is gone goes, and what its owner waits for; true if there was something.
fn collect(world: &mut World) -> bool {
    let all: Vec<(Key, std::sync::Arc<Value>)> = [Kind::Foo, Kind::Deployment, Kind::Service]
        .into_iter()
        .flat_map(|kind| world.store.list(kind, None))
        .map(|(key, object)| (key.clone(), object.clone()))
        .collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let alive: BTreeMap<String, &Value> = all
        .iter()
        .map(|(_, object)| (text(&object["metadata"]["uid"]), &**object))
        .collect();
    let none = Vec::new();
    let owners = |object: &Value| {
        object["metadata"]["ownerReferences"]
            .as_array()
            .unwrap_or(&none)
            .clone()
    };
    let finalizers = |object: &Value| -> Vec<String> {
        let all = object["metadata"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten();
        all.map(text).collect()
    };
    let mut asked = Vec::new();
    for (key, object) in &all {
        let uid = text(&object["metadata"]["uid"]);
        let is_deleting = object["metadata"]["deletionTimestamp"].is_string();
        let owners_of_it = owners(object);
        let delete = |policy: &str| {
            let body = json!({
                "kind": "DeleteOptions", "apiVersion": "v1",
                "propagationPolicy": policy, "preconditions": { "uid": uid },
            });
            (Method::DELETE, path_of(key), body)
        };
        let is_orphan = !owners_of_it.is_empty()
            && owners_of_it
                .iter()
                .all(|owner| !alive.contains_key(&text(&owner["uid"])));
        let is_waited_for = owners_of_it.iter().any(|owner| {
            let owner = alive.get(&text(&owner["uid"]));
            owner.is_some_and(|owner| {
                owner["metadata"]["deletionTimestamp"].is_string()
                    && finalizers(owner)
                        .iter()
                        .any(|it| it == "foregroundDeletion")
            })
        });
        if (is_orphan || is_waited_for) && !is_deleting {
            asked.push(delete(if is_waited_for {
                "Foreground"
            } else {
                "Background"
            }));
        }
        if !is_deleting {
            continue;
        }
        let mine = || {
            all.iter()
                .filter(|(_, other)| owners(other).iter().any(|owner| text(&owner["uid"]) == uid))
        };
        let had = finalizers(object);
        let mut kept = had.clone();
        if had.iter().any(|it| it == "orphan") {
            for (other, dependent) in mine() {
                let mut left = owners(dependent);
                left.retain(|owner| text(&owner["uid"]) != uid);
                let patch = json!({ "metadata": {
                    "ownerReferences": if left.is_empty() { Value::Null } else { left.into() },
                    "uid": dependent["metadata"]["uid"],
                }});
                asked.push((Method::PATCH, path_of(other), patch));
            }
            kept.retain(|it| it != "orphan");
        }
        // As the real one: for those alone whose owner said that its deletion waits for them.
        let blocks =
            |owner: &Value| text(&owner["uid"]) == uid && owner["blockOwnerDeletion"] == true;
        if !mine().any(|(_, dependent)| owners(dependent).iter().any(blocks)) {
            kept.retain(|it| it != "foregroundDeletion");
        }
        if kept != had {
            let patch = json!({ "metadata": {
                "finalizers": if kept.is_empty() { Value::Null } else { kept.into() },
                "resourceVersion": object["metadata"]["resourceVersion"],
            }});
            asked.push((Method::PATCH, path_of(key), patch));
        }
    }
    let something = !asked.is_empty();
    for (method, path, body) in asked {
        world.request(GARBAGE_COLLECTOR, &method, &path, &body);
    }
    something
}

/// Where an object is served.
pub fn path_of(key: &Key) -> String {
    let info = key.kind.info();
    let root = if info.group.is_empty() {
        "/api"
    } else {
        "/apis"
    };
    let version = key.kind.api_version();
    let (namespace, name) = (&key.namespace, &key.name);
    format!(
        "{root}/{version}/namespaces/{namespace}/{}/{name}",
        info.plural
    )
}

/// Does what a user does; the answer's code.
pub fn carry_out(world: &mut World, action: &Action) -> u16 {
    if let Action::User(deed) = action {
        return users::act(world, *deed);
    }
    let path = |foo: &str| path_of(&Key::new(Kind::Foo, FOOS, foo));
    let (user, method, path, body) = match action {
        Action::Create {
            foo,
            deployment,
            replicas,
        } => {
            let all = path("");
            let mut body = json!({
                "apiVersion": Kind::Foo.api_version(), "kind": "Foo",
                "metadata": { "name": foo, "namespace": FOOS },
                "spec": { "deploymentName": deployment },
            });
            if let Some(replicas) = replicas {
                body["spec"]["replicas"] = (*replicas).into();
            }
            (
                USER,
                Method::POST,
                all.trim_end_matches('/').to_owned(),
                body,
            )
        }
        Action::Scale { foo, replicas } => (
            USER,
            Method::PATCH,
            path(foo),
            json!({ "spec": { "replicas": replicas } }),
        ),
        Action::Rename { foo, deployment } => (
            USER,
            Method::PATCH,
            path(foo),
            json!({ "spec": { "deploymentName": deployment } }),
        ),
        Action::Delete { foo, policy } => {
            let options = json!({
                "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy,
            });
            (USER, Method::DELETE, path(foo), options)
        }
        Action::Request {
            user,
            method,
            path,
            body,
        } => (*user, method.clone(), path.clone(), body.clone()),
        Action::User(_)
        | Action::Stop { .. }
        | Action::Start { .. }
        | Action::Replace { .. }
        | Action::Upgrade { .. } => return 0,
    };
    world.request(user, &method, &path, &body).0
}
