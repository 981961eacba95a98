//! The other clients: users, the Deployment controller, the namespace controller and the garbage collector. The
//! first running API server answers their requests without delay.

mod deployment;
mod namespace;

use std::collections::BTreeMap;

use operator_testkit::api_server::{Key, Kind, Method};
use serde_json::{Value, json};

use super::{
    plan::{Action, Fault, draw},
    subject::meddle,
    trace::Time,
    world::{World, at},
};

use deployment::Rollout;
pub use deployment::{deployment_name, failure, has_given_up, is_held};

/// User that owns the objects.
pub const USER: &str = "alice";
pub const GARBAGE_COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

/// State of these clients.
#[derive(Default)]
pub struct Actors {
    /// Running reconciles: their index in the trace, by span number.
    pub spans: BTreeMap<u64, usize>,
    /// Length of the store's history when nothing was left to do, and the time of the next step.
    at_rest: Option<(usize, Time)>,
    /// By UID of the Deployment.
    rollouts: BTreeMap<String, Rollout>,
    namespace: namespace::Namespace,
    /// When the next step for a CRD is due.
    definitions: BTreeMap<Kind, Time>,
}

impl Actors {
    pub fn tick(&mut self, world: &mut World) {
        let history = world.store.history();
        if let Some((seen, next)) = &mut self.at_rest {
            // These clients do not react to them.
            let is_idle = |kind| matches!(kind, Kind::Lease | Kind::Event);
            let mut news = history[*seen..].iter();
            if world.now < *next && news.all(|one| is_idle(one.key.kind)) {
                *seen = history.len();
                return;
            }
        }
        let before = history.len();
        let rolls_on = self.roll_out(world);
        let is_idle = world.is_going_on(|fault| matches!(fault, Fault::NoCollector));
        let collected = !is_idle && collect(world);
        let is_changing = self.namespace.tick(world);
        let next = rolls_on.min(self.settle(world));
        let is_at_rest = !collected && !is_changing && world.store.history().len() == before;
        self.at_rest = is_at_rest.then_some((before, next));
    }

    /// Makes the next tick run although nothing was written.
    pub fn wake(&mut self) {
        self.at_rest = None;
        self.rollouts.values_mut().for_each(Rollout::wake);
    }

    /// Runs the API server's controllers of CRDs, each step after a random delay. Returns the time of the next step.
    fn settle(&mut self, world: &mut World) -> Time {
        /// Longest delay, in milliseconds.
        const SLOWEST: u64 = 1_000;
        let kinds = world.store.custom_kinds().to_vec();
        let (seed, version) = (world.plan.seed, world.store.version());
        self.definitions
            .retain(|kind, _| world.store.is_unsettled(*kind));
        for kind in kinds {
            if world.store.is_unsettled(kind) {
                let delay = draw(seed, "definition", version) % SLOWEST;
                let due = world.now + Time::from_millis(delay);
                if world.now >= *self.definitions.entry(kind).or_insert(due) {
                    self.definitions.remove(&kind);
                    world.store.settle_definition(at(world.now), kind);
                }
            }
        }
        self.definitions
            .values()
            .min()
            .copied()
            .unwrap_or(Time::MAX)
    }

    /// Runs the Deployment controller. Returns the time of its next step, if nothing is written before.
    fn roll_out(&mut self, world: &mut World) -> Time {
        let all = world.store.list(Kind::Deployment, None);
        let all: Vec<_> = all
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        let mut next = Time::MAX;
        for (key, object) in all {
            if object["metadata"]["deletionTimestamp"].is_string() {
                continue;
            }
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
            let rollout = self.rollouts.entry(uid.to_owned()).or_default();
            next = next.min(rollout.step(world, &key, &object));
        }
        next
    }
}

/// Built-in kinds that the garbage collector handles. It handles custom kinds as well.
const COLLECTED: [Kind; 5] = [
    Kind::Deployment,
    Kind::Service,
    Kind::ConfigMap,
    Kind::Secret,
    Kind::Job,
];

/// Runs the garbage collector. Deletes objects whose owners are all gone, and dependents of an owner in foreground deletion.
/// Returns whether it has sent a request.
fn collect(world: &mut World) -> bool {
    let kinds = world.store.custom_kinds().iter().chain(&COLLECTED).copied();
    let all: Vec<(Key, std::sync::Arc<Value>)> = kinds
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
            (Method::DELETE, key.url(), body)
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
                asked.push((Method::PATCH, other.url(), patch));
            }
            kept.retain(|it| it != "orphan");
        }
        // Like the real collector, waits only for dependents with `blockOwnerDeletion`.
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
            asked.push((Method::PATCH, key.url(), patch));
        }
    }
    let something = !asked.is_empty();
    for (method, path, body) in asked {
        world.request(GARBAGE_COLLECTOR, &method, &path, &body);
    }
    something
}

/// Carries out a user action. Returns the status code, or 0 if the action is not a request.
pub fn carry_out(world: &mut World, action: &Action) -> u16 {
    match action {
        Action::User(action) => action.act(world),
        Action::Meddle { what, pick } => meddle(world, *what, *pick),
        Action::Request(request) => request.send(world, USER).0,
        Action::Stop { .. }
        | Action::Start { .. }
        | Action::Replace { .. }
        | Action::Upgrade { .. } => 0,
    }
}
