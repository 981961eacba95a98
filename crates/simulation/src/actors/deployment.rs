//! The Deployment controller and its `ReplicaSets`, as far as a status shows them: `pkg/controller/deployment` of Kubernetes
//! 1.36.

use std::{cmp::Ordering, sync::Arc};

use operator_testkit::api_server::{Key, Method};
use serde_json::{Value, json};

use super::super::{
    plan::Fault,
    trace::Time,
    world::{World, at},
};

const CONTROLLER: &str = "system:serviceaccount:kube-system:deployment-controller";
const REVISION: &str = "deployment.kubernetes.io/revision";

/// Time until a pod is available or gone.
const POD: Time = Time::from_millis(300);

/// Returns the name of a Deployment that users name by a number.
pub fn deployment_name(number: u8) -> String {
    format!("app-{number}")
}

/// `progressDeadlineSeconds`
const DEADLINE: Time = Time::from_secs(10);

const AVAILABLE: &str = "NewReplicaSetAvailable";
const DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

/// Message of an API server that rejects a pod.
const REFUSED: &str = "pods \"app\" is forbidden: exceeded quota: pods";

/// Progress of a Deployment.
#[derive(Clone, Default)]
pub struct Rollout {
    /// Settled object, and the time of the next step.
    at_rest: Option<(Arc<Value>, Time)>,
    /// Time of the next pod change.
    due: Option<Time>,
    /// Pod template, and whether it has a `ReplicaSet`.
    template: Value,
    is_made: bool,
    /// Time of the last progress.
    progressed: Time,
    /// Pods of this template, the available pods among them, and the (always available) pods of other templates.
    made: i64,
    ready: i64,
    old: i64,
}

/// Reasons for missing pods.
#[derive(Clone, Copy)]
struct Hindered {
    /// New pods do not become available.
    hangs: bool,
    /// New pods are rejected.
    refused: bool,
    paused: bool,
}

impl Rollout {
    /// Takes one step and writes the status. Returns the time of the next step, if nothing is written before.
    pub fn step(&mut self, world: &mut World, key: &Key, object: &Arc<Value>) -> Time {
        let at_rest = self.at_rest.take();
        let is_same = |(known, next): &(_, Time)| Arc::ptr_eq(known, object) && world.now < *next;
        if let Some((_, next)) = at_rest.filter(is_same) {
            self.at_rest = Some((Arc::clone(object), next));
            return next;
        }
        let (spec, status, path) = (&object["spec"], &object["status"], key.url());
        let wanted = spec["replicas"].as_i64().unwrap_or(1);
        let generation = &object["metadata"]["generation"];
        let is = |refuses: bool| {
            world.is_going_on(|fault| {
                matches!(fault, Fault::NoPods { deployment, refused }
                    if *refused == refuses && deployment_name(*deployment) == key.name)
            })
        };
        let why = Hindered {
            hangs: is(false),
            refused: is(true),
            paused: spec["paused"] == true,
        };
        let is_numbered = !object["metadata"]["annotations"][REVISION].is_null() || why.paused;
        if !is_numbered {
            let revision = json!({ "metadata": { "annotations": { REVISION: "1" } } });
            world.request(CONTROLLER, &Method::PATCH, &path, &revision);
        }
        self.read(&spec["template"], status);
        let mut next = self.next(wanted, why);
        let is_further = (next.ready, next.old) != (self.ready, self.old);
        let is_due = is_further && world.now >= *self.due.get_or_insert(world.now + POD);
        if !is_due {
            // A generation is observed without delay.
            (next.ready, next.old) = (self.ready, self.old);
        }
        next.create(self.made, wanted, why);
        let conditions = next.conditions(self, &status["conditions"], wanted, why, world.now);
        let counts = next.counts(generation, &conditions);
        let reason = condition(&counts["conditions"], "Progressing")["reason"].clone();
        let may_time_out = [AVAILABLE, DEADLINE_EXCEEDED, PAUSED]
            .iter()
            .all(|it| reason != *it);
        let mut said = counts.as_object().into_iter().flatten();
        if said.all(|(field, value)| status[field] == *value) {
            if !is_numbered {
                // The write of the number may have failed.
                return Time::ZERO;
            }
            let pod = self.due.filter(|_| is_further);
            let deadline = may_time_out.then_some(self.progressed + DEADLINE);
            let next = pod.into_iter().chain(deadline).min();
            let next = next.unwrap_or(Time::MAX);
            self.at_rest = Some((Arc::clone(object), next));
            return next;
        }
        let body = json!({ "status": counts });
        let path = format!("{path}/status");
        let (code, _) = world.request(CONTROLLER, &Method::PATCH, &path, &body);
        if code == 200 {
            let due = self.due.filter(|_| !is_due);
            *self = Self { due, ..next };
        }
        Time::ZERO
    }

    /// Makes the next step run although nothing was written.
    pub fn wake(&mut self) {
        self.at_rest = None;
    }

    /// Reads the current state, which users may have changed.
    fn read(&mut self, template: &Value, status: &Value) {
        let available = status["availableReplicas"].as_i64().unwrap_or_default();
        if self.template != *template {
            (self.template, self.is_made) = (template.clone(), false);
            (self.old, self.made) = (available, 0);
        }
        self.old = self.old.min(available);
        self.ready = available - self.old;
        self.made = self.made.max(self.ready);
    }

    /// Returns the state after one pod change. A rollout adds one surplus pod, then removes an old one.
    fn next(&self, wanted: i64, why: Hindered) -> Self {
        let mut next = self.clone();
        let (ready, old) = (self.ready, self.old);
        let may_come = !why.hangs && (!why.refused || self.made > ready);
        match (why.paused, old > 0) {
            // The previous ReplicaSet is scaled.
            (true, true) if self.made == 0 => match old.cmp(&wanted) {
                Ordering::Less if !why.hangs && !why.refused => next.old += 1,
                Ordering::Greater => next.old -= 1,
                _ => {}
            },
            (true, true) => next.ready += i64::from(ready < self.made && !why.hangs),
            (true, false) if !self.is_made => {}
            (false, true) if ready + old > wanted => next.old -= 1,
            _ => match ready.cmp(&wanted) {
                Ordering::Less if may_come => next.ready += 1,
                Ordering::Greater => next.ready -= 1,
                _ => {}
            },
        }
        next
    }

    /// Creates pods. A rollout has at most one new pod that is not available. `made` is the previous count.
    fn create(&mut self, made: i64, wanted: i64, why: Hindered) {
        self.is_made |= !why.paused;
        let missing = (wanted - self.ready).max(0);
        let coming = if self.old == 0 {
            missing
        } else {
            missing.min(1)
        };
        let is_frozen = why.paused && (self.old > 0 || !self.is_made);
        let most = self.ready + coming;
        self.made = if is_frozen || why.refused {
            made.min(most).max(self.ready)
        } else {
            most
        };
    }

    fn counts(&self, generation: &Value, conditions: &Value) -> Value {
        // Go omits zeros.
        let number = |count: i64| Some(count).filter(|count| *count != 0);
        let (replicas, available) = (self.made + self.old, self.ready + self.old);
        json!({
            "observedGeneration": generation,
            "replicas": number(replicas), "updatedReplicas": number(self.made),
            "readyReplicas": number(available), "availableReplicas": number(available),
            "unavailableReplicas": number(replicas - available), "conditions": conditions,
        })
    }

    /// Sets `Progressing` and `ReplicaFailure` like `syncRolloutStatus` and `checkPausedConditions`.
    fn conditions(
        &mut self,
        before: &Self,
        said: &Value,
        wanted: i64,
        why: Hindered,
        now: Time,
    ) -> Value {
        let was = condition(said, "Progressing");
        let reason = was["reason"].as_str().unwrap_or_default();
        let is_complete = (self.made, self.old, self.ready) == (wanted, 0, wanted);
        let is_further =
            self.made > before.made || self.old < before.old || self.ready > before.ready;
        let is_given_up = [AVAILABLE, DEADLINE_EXCEEDED].contains(&reason);
        let verdict = match reason {
            _ if self.is_made && !before.is_made => Some(("True", "NewReplicaSetCreated")),
            DEADLINE_EXCEEDED | PAUSED if why.paused => None,
            _ if why.paused => Some(("Unknown", PAUSED)),
            PAUSED => Some(("Unknown", "DeploymentResumed")),
            // No rollout, hence no deadline.
            AVAILABLE if self.old == 0 => None,
            _ if is_complete => Some(("True", AVAILABLE)),
            _ if is_further => Some(("True", "ReplicaSetUpdated")),
            _ if !is_given_up && now >= self.progressed + DEADLINE => {
                Some(("False", DEADLINE_EXCEEDED))
            }
            _ => None,
        };
        let time = at(now).wall.to_string();
        let new = |of_type: &str, status: &str, reason: &str, message: &str| {
            json!({
                "type": of_type, "status": status, "reason": reason, "message": message,
                "lastUpdateTime": time, "lastTransitionTime": time,
            })
        };
        if verdict.is_some() {
            self.progressed = now;
        }
        let progressing = verdict.map(|(status, reason)| new("Progressing", status, reason, ""));
        let failed = condition(said, "ReplicaFailure");
        let is_refused = why.refused && self.made + self.old < wanted + i64::from(self.old > 0);
        let failure = if why.paused || is_refused && !failed.is_null() {
            Some(failed.clone())
        } else {
            is_refused.then(|| new("ReplicaFailure", "True", "FailedCreate", REFUSED))
        };
        let all = [Some(progressing.unwrap_or_else(|| was.clone())), failure];
        let all: Vec<_> = all
            .into_iter()
            .flatten()
            .filter(|it| !it.is_null())
            .collect();
        if all.is_empty() {
            Value::Null
        } else {
            all.into()
        }
    }
}

fn condition<'a>(conditions: &'a Value, of_type: &str) -> &'a Value {
    let mut all = conditions.as_array().into_iter().flatten();
    all.find(|one| one["type"] == of_type)
        .unwrap_or(&Value::Null)
}

/// Returns whether the rollout has exceeded its deadline.
pub fn has_given_up(deployment: &Value) -> bool {
    condition(&deployment["status"]["conditions"], "Progressing")["reason"] == DEADLINE_EXCEEDED
}

/// Returns the message about rejected pods.
pub fn failure(deployment: &Value) -> Option<&str> {
    condition(&deployment["status"]["conditions"], "ReplicaFailure")["message"].as_str()
}

/// Returns whether a paused rollout is waiting for its resume.
pub fn is_held(deployment: &Value) -> bool {
    let count = |field: &str| deployment["status"][field].as_i64().unwrap_or_default();
    let (all, updated) = (count("replicas"), count("updatedReplicas"));
    deployment["spec"]["paused"] == true && (all > updated || all == 0)
}
