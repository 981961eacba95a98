//! A written status is correct.

use std::{collections::BTreeMap, time::Duration};

use foo_controller::api::{Foo, FooSpec};
use operator_simulation::{
    actors::{failure, has_given_up, is_held},
    judge::{
        Case, Violation,
        fields::{condition, owner, text},
        made, named,
        subject::is_moved,
    },
    trace::Call,
};
use operator_testkit::api_server::{Kind, Revision};
use serde_json::Value;

use super::{
    super::{FOO, invariants::GENERATION},
    deployments::is_going,
    known::Known,
    rollouts::{self, QUEUED},
    warnings::{foo_of, is_in_the_way, is_refused},
};

/// Returns whether a rollout is complete, as `kubectl rollout status` judges it. While a Deployment is scaled down, it may have
/// more pods than specified.
pub fn is_rolled_out(deployment: &Value) -> bool {
    let status = &deployment["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or_default();
    let (wanted, updated) = (&deployment["spec"]["replicas"], count("updatedReplicas"));
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && updated >= wanted.as_i64().unwrap_or(1)
        && count("replicas") <= updated
        && count("availableReplicas") >= updated
}

/// A status describes the Deployment in a state that its writer may have known, and that matched the Foo. An error in the
/// status has occurred. The time of a condition changes only with its status.
pub fn check(case: &Case, found: &mut Vec<Violation>) {
    for (index, revision) in case.store.history().iter().enumerate() {
        let writer = case.writer(index);
        let Some(call) = writer.filter(|_| revision.key.kind == FOO) else {
            continue;
        };
        let (Some(before), Some(after)) = (revision.before.as_deref(), revision.after.as_deref())
        else {
            continue;
        };
        let report = Report::new(case, call, before);
        let what = if report.is_right() {
            moved(before, after)
                .map(|moved| format!("says since when it is {moved} anew, and it was so before"))
                .or_else(|| {
                    let stays = stays(case, revision, call)?;
                    Some(format!(
                        "is {stays} otherwise, and says since when as before"
                    ))
                })
        } else {
            Some(format!("says what was not so: {}", call.body["status"]))
        };
        found.extend(what.map(|what| Violation {
            invariant: "I13",
            at: made(revision),
            object: named(&revision.key),
            what,
        }));
    }
}

/// Status that was written, and its possible basis.
struct Report<'a> {
    case: &'a Case<'a>,
    call: &'a Call,
    /// Foo before the write.
    foo: &'a Value,
    /// Spec of the Foo, if it can be parsed.
    spec: Option<FooSpec>,
    known: Known<'a>,
    /// Whether the reconcile failed or did not end.
    failed: bool,
}

/// Fields of a status that describe a Deployment, except its readiness.
#[derive(PartialEq)]
struct Counts<'a> {
    available: i64,
    replicas: i64,
    selector: String,
    name: &'a str,
}

impl<'a> Report<'a> {
    fn new(case: &'a Case<'a>, call: &'a Call, foo: &'a Value) -> Self {
        let known = Known::new(case, call, text(&foo["metadata"]["name"]));
        let spec = serde_json::from_value::<Foo>(foo.clone());
        Self {
            case,
            call,
            foo,
            spec: spec.ok().map(|foo| foo.spec),
            failed: (known.reconcile).is_some_and(|one| one.failed || one.ended.is_none()),
            known,
        }
    }

    fn is_right(&self) -> bool {
        let (status, old) = (&self.call.body["status"], &self.foo["status"]);
        let is_same = |field: &str| status[field] == old[field];
        // A transient error changes only the counts.
        let is_said_before = is_same("observedGeneration") && is_same("conditions");
        if self.failed && is_said_before && self.counts_what_serves() {
            return true;
        }
        if status["observedGeneration"] != self.foo["metadata"]["generation"] {
            return false;
        }
        let mut all = conditions(&self.call.body);
        if all.any(|one| one["observedGeneration"] != status["observedGeneration"]) {
            return false;
        }
        let [ready, progressing] =
            ["Ready", "Progressing"].map(|of_type| condition(&self.call.body, of_type));
        let stalled = condition(&self.call.body, "Stalled");
        if !self.may_stall(ready, stalled) {
            return false;
        }
        // A failure that may end without the user is in progress until the Foo stalls.
        let progressing = match (stalled.0, progressing) {
            ("False", ("True", reason)) if reason == ready.1 => ("False", reason),
            ("False", _) => return false,
            _ => progressing,
        };
        if ready == progressing && ![GAVE_UP, OVERRULED, HELD, FAILED].contains(&ready) {
            return ready.0 == "False" && self.is_true(ready.1) && self.counts_what_serves();
        }
        if ready == DELETING && self.is_true(ready.1) && self.counts_what_serves() {
            return progressing == ("True", ready.1);
        }
        let wanted = self.wanted();
        let fails = progressing == ("False", "DeletionFailed");
        let says = |deployment: &Value| {
            let verdicts = verdicts(
                deployment,
                self.spec.as_ref().and_then(|spec| spec.replicas),
            );
            // The previous Deployment serves until this Deployment does. The status names it for as long as it cannot be
            // deleted.
            let is_complete = verdicts[0].0 == "True" || verdicts[0] == OVERRULED;
            let its = self.counts() == counts(deployment, wanted);
            let (of_served, may_be_gone) = self.counts_served();
            let is_counted = match (fails, is_complete) {
                (true, _) => its || of_served,
                (false, true) => its,
                (false, false) => of_served || may_be_gone && its,
            };
            let is_complete = verdicts[0].0 == "True";
            let expected = match () {
                () if fails => progressing,
                () if self.is_queued() && is_complete => QUEUED,
                () => verdicts[1],
            };
            let expected = [verdicts[0], expected];
            [ready, progressing] == expected && is_counted && self.says_how_many(deployment)
        };
        let mut its = self.known.states(wanted).into_iter().flatten();
        self.is_valid()
            && (!fails || self.is_true("DeletionFailed"))
            && (!self.is_queued() || self.others_roll_out())
            && its.any(|one| self.is_its(one) && says(one) && self.is_as_asked(one))
    }

    /// Returns whether the condition `Stalled` fits to `Ready`. It exists while a Foo fails. It is False at first if the failure may
    /// end without a user, and True in the end. The clocks of replicas differ, so the time between is not judged.
    fn may_stall(&self, ready: (&str, &str), stalled: (&str, &str)) -> bool {
        let fails = ready.0 == "False" && ready != PROGRESSING && ready != DELETING;
        if !fails {
            return stalled == ("", "");
        }
        let generation = &self.call.body["status"]["observedGeneration"];
        let before = conditions(self.foo).find(|one| one["type"] == "Stalled");
        let before = before.filter(|one| one["observedGeneration"] == *generation);
        let before = before.map(|one| text(&one["status"]));
        let may_be = match ready.1 {
            // A denial may end, other rejections do not. Rejected pods may end until the deadline of the rollout.
            "DeploymentRejected" | "ReplicaFailure" => {
                before != Some("True") || stalled.0 == "True"
            }
            "DeploymentTimedOut" | "DeploymentContested" => match before {
                None => stalled.0 == "False",
                Some("True") => stalled.0 == "True",
                _ => true,
            },
            _ => stalled.0 == "True",
        };
        may_be && stalled.1 == ready.1
    }

    fn is_queued(&self) -> bool {
        rollouts::is_queued(&self.call.body)
    }

    /// Returns whether the limit of concurrent rollouts may have been reached by other Deployments.
    fn others_roll_out(&self) -> bool {
        let max = self.case.life(self.call.who);
        let max = max.map_or(0, |life| life.settings.max_rollouts);
        let others = self.case.names_of(Kind::Deployment);
        let others = others.filter(|name| *name != self.wanted());
        let begun = self
            .known
            .reconcile
            .map_or(self.call.begun, |one| one.begun);
        let own = &self.foo["metadata"]["name"];
        // The next write after a live read of a Foo: a patch takes the place before the read, and a deletion takes none.
        let goes_on_with = |read: &Call, foo: &str, name: &str| {
            let mut later = self.case.trace.calls.iter();
            let next = later.find(|next| {
                next.who == read.who
                    && next.begun >= read.begun
                    && next.resource == "deployments"
                    && matches!(next.verb, "create" | "patch" | "delete")
                    && foo_of(self.case, next) == Some(foo)
            });
            next.is_none_or(|next| next.verb == "patch" && next.name() == name)
        };
        let is_starting = |name: &str, states: &[&Value]| {
            let owners = states
                .iter()
                .map(|one| text(&one["metadata"]["ownerReferences"][0]["name"]));
            let owners: Vec<_> = owners.collect();
            let mut calls = self.case.trace.calls.iter();
            calls.any(|call| {
                let is_it = || match (&*call.resource, call.verb, looked_up(call)) {
                    ("deployments", "patch", _) => call.name() == name,
                    ("foos", "list", Some(foo)) => {
                        own != foo && owners.contains(&foo) && goes_on_with(call, foo, name)
                    }
                    _ => false,
                };
                call.who == self.call.who
                    && call.begun <= self.call.begun
                    && call.answered.is_none_or(|(at, _)| at >= begun)
                    && is_it()
            })
        };
        let roll_out = others.filter(|name| {
            let states = self.known.states(name).into_iter().flatten();
            let states: Vec<_> = states.collect();
            states.iter().any(|one| rollouts::rolls_out(one)) || is_starting(name, &states)
        });
        max > 0 && roll_out.count() >= max
    }

    /// Returns whether the error with this reason occurred.
    fn is_true(&self, reason: &str) -> bool {
        let wanted = self.wanted();
        let mut asked = self.known.asked.iter();
        match reason {
            "InvalidSpec" => !self.is_valid(),
            "ErrResourceExists" => {
                let states = self.known.states(wanted);
                states.into_iter().flatten().any(|one| !self.is_its(one))
            }
            // The Deployment is terminating, or of an earlier Foo of this name.
            "DeploymentDeleting" => {
                let will_go = |one: &Value| {
                    let owners = one["metadata"]["ownerReferences"].as_array();
                    let mut owners = owners.into_iter().flatten();
                    is_going(one)
                        || owners.any(|owner| owner["name"] == self.foo["metadata"]["name"])
                };
                let states = self.known.states(wanted).into_iter().flatten();
                states.filter(|one| !self.is_its(one)).any(will_go)
            }
            "DeploymentRejected" => asked.any(|call| is_refused(call) && self.is_for_it(call)),
            "DeploymentTimedOut" => {
                let timed_out = |call: &&&Call| call.answered.is_some_and(|(_, code)| code == 504);
                asked.filter(timed_out).any(|call| self.is_for_it(call))
            }
            "DeploymentContested" => {
                let served = text(&self.foo["status"]["deploymentName"]);
                self.has_written_often(|name| name == wanted || name == served)
            }
            "DeletionFailed" => {
                let failed = |call: &&&Call| {
                    // The reconcile did not wait for a later response.
                    let answered = call.answered.filter(|(at, _)| *at <= self.call.begun);
                    let code = answered.map_or(0, |(_, code)| code);
                    match call.verb {
                        "delete" => call.fault.is_some() || !matches!(code, 200..300 | 404 | 409),
                        // The live read before a deletion.
                        "list" => call.fault.is_some() || !matches!(code, 200..300),
                        _ => false,
                    }
                };
                asked.filter(failed).any(|call| self.is_for_it(call))
                    || self.was_cut_off()
                    || self.has_written_often(|name| name != wanted)
            }
            _ => false,
        }
    }

    /// Returns whether a fault may have kept all requests of the reconcile from the API server. A request that was not sent is
    /// not a call.
    fn was_cut_off(&self) -> bool {
        let begun = self
            .known
            .reconcile
            .map_or(self.call.begun, |one| one.begun);
        self.case.trace.faults.iter().any(|(time, fault)| {
            time.start < self.call.begun
                && time.end > begun
                && fault.is_about(self.call.who.replica)
                && is_in_the_way(fault)
        })
    }

    /// Returns whether the call was made for this Foo: it is about its Deployments, or it is the live read before a deletion.
    fn is_for_it(&self, call: &Call) -> bool {
        let name = text(&self.foo["metadata"]["name"]);
        match (looked_up(call), &*call.resource) {
            (Some(looked_up), "foos") => looked_up == name,
            (Some(looked_up), _) => looked_up == self.wanted(),
            (None, _) => foo_of(self.case, call) == Some(name),
        }
    }

    /// Returns whether the writer has written a Deployment often enough to delay the next write, for the present generation of
    /// the Foo. The limit is ten writes, and three of them may have been for the previous generation.
    fn has_written_often(&self, is_meant: impl Fn(&str) -> bool) -> bool {
        const OFTEN: usize = 7;
        let metadata = &self.foo["metadata"];
        let history = || self.case.store.history().iter().enumerate();
        // Compares generation numbers, which repeat after a restored backup.
        let of_this = |one: &Revision| {
            let generation = |foo: &Value| foo["metadata"]["generation"] == metadata["generation"];
            let is_it = one.key.kind == FOO && metadata["name"] == one.key.name;
            is_it && one.after.as_deref().is_some_and(generation)
        };
        let since = history().find(|(_, one)| of_this(one));
        let since = since.map_or(0, |(index, _)| index);
        let mut times = BTreeMap::<_, usize>::new();
        for (index, revision) in history().skip(since) {
            let object = revision.before.as_deref().or(revision.after.as_deref());
            let is_one = revision.key.kind == Kind::Deployment
                && is_meant(&revision.key.name)
                && object.is_some_and(|object| self.is_its(object));
            let writer = self.case.writer(index).filter(|_| is_one);
            if writer.is_some_and(|call| call.who == self.call.who && call.begun <= self.call.begun)
            {
                *times.entry(&revision.key).or_default() += 1;
            }
        }
        times.into_values().any(|times| times >= OFTEN)
    }

    /// Returns whether the status counts the Deployment of an earlier name, which it names, and whether that Deployment may be
    /// deleted.
    fn counts_served(&self) -> (bool, bool) {
        let served = text(&self.foo["status"]["deploymentName"]);
        if served.is_empty() || served == self.wanted() {
            return (false, true);
        }
        let (mut is_counted, mut may_be_gone) = (false, false);
        for state in self.known.states(served) {
            match state.filter(|one| self.is_its(one)) {
                Some(one) => is_counted |= self.counts() == counts(one, served),
                None => may_be_gone = true,
            }
        }
        (is_counted, may_be_gone)
    }

    /// Returns whether the counts are right after an error. They are of the Deployment that the status names, if it is the
    /// Foo's. Otherwise they are of the specified Deployment, of another Deployment that was made for the Foo, or zero.
    fn counts_what_serves(&self) -> bool {
        let (wanted, served) = (self.wanted(), text(&self.foo["status"]["deploymentName"]));
        let says = self.counts();
        for name in [served, wanted] {
            let states = self.known.states(name);
            let is_its = |one: Option<&Value>| one.is_some_and(|one| self.is_its(one));
            let mut its = states
                .iter()
                .copied()
                .flatten()
                .filter(|one| self.is_its(one));
            if its.any(|one| says == counts(one, name)) {
                return true;
            }
            if states.into_iter().all(is_its) {
                return false;
            }
        }
        let others = self.case.names_of(Kind::Deployment);
        let mut others = others.filter(|name| ![wanted, served].contains(name));
        let is_other = others.any(|name| {
            let mut states = self.known.states(name).into_iter().flatten();
            states.any(|one| {
                let is_made = one["metadata"]["annotations"][GENERATION].is_string();
                is_made && self.is_its(one) && says == counts(one, name)
            })
        });
        let none = Counts {
            available: 0,
            replicas: 0,
            selector: text(&self.foo["status"]["selector"]).to_owned(),
            name: served,
        };
        is_other || says == none
    }

    /// Returns whether the messages of the conditions have the numbers of the Deployment and of the desired replicas.
    fn says_how_many(&self, deployment: &Value) -> bool {
        let asked = self.spec.as_ref().and_then(|spec| spec.replicas);
        let has = format!("Deployment {:?} has ", self.wanted());
        let said = format!("{has}{}", lacks(deployment, asked.map(i64::from)));
        let words = failure(deployment).unwrap_or_default();
        let mut conditions = conditions(&self.call.body);
        conditions.all(|condition| {
            let message = text(&condition["message"]);
            let is_said = match text(&condition["reason"]) {
                "ReplicaFailure" => message.ends_with(words),
                "DeploymentPaused" => message.contains("kubectl rollout resume deployment/"),
                _ => true,
            };
            is_said && (!message.starts_with(&has) || message.starts_with(&said))
        })
    }

    fn counts(&self) -> Counts<'a> {
        let status = &self.call.body["status"];
        let count = |field: &str| status[field].as_i64().unwrap_or(-1);
        Counts {
            available: count("availableReplicas"),
            replicas: count("replicas"),
            selector: text(&status["selector"]).to_owned(),
            name: text(&status["deploymentName"]),
        }
    }

    fn wanted(&self) -> &str {
        let spec = self.spec.as_ref();
        spec.map_or("", |spec| &*spec.deployment_name)
    }

    fn is_valid(&self) -> bool {
        let name = text(&self.foo["metadata"]["name"]);
        let spec = self.spec.as_ref();
        spec.is_some_and(|spec| spec.check(name).is_ok())
    }

    fn is_its(&self, deployment: &Value) -> bool {
        owner(deployment) == text(&self.foo["metadata"]["uid"])
    }

    /// Returns whether the Deployment matches the Foo, or a response that its writer received while a policy changed writes. A
    /// terminating Deployment always matches.
    fn is_as_asked(&self, deployment: &Value) -> bool {
        let fields = |of: &Value| {
            let (spec, template) = (&of["spec"], &of["spec"]["template"]);
            let labels = [&of["metadata"]["labels"], &template["metadata"]["labels"]];
            let [(app, name), (pods_app, pods_name)] =
                labels.map(|labels| (labels["app"].clone(), labels["controller"].clone()));
            let image = template["spec"]["containers"][0]["image"].clone();
            [
                spec["replicas"].clone(),
                image,
                app,
                pods_app,
                name,
                pods_name,
            ]
        };
        let replicas = self.spec.as_ref().and_then(|spec| spec.replicas);
        let life = self.case.life(self.call.who);
        let image = life.map_or("", |life| life.settings.image);
        let name = &self.foo["metadata"]["name"];
        let is = fields(deployment);
        let is_queued = self.is_queued();
        let asked = [
            replicas.map_or(is[0].clone(), Value::from),
            if is_queued {
                is[1].clone()
            } else {
                image.into()
            },
            APP.into(),
            APP.into(),
            name.clone(),
            name.clone(),
        ];
        let is_overruled = || {
            let mut calls = self.case.trace.calls.iter();
            calls.any(|call| {
                let answer = call.answer.as_deref().filter(|_| call.who == self.call.who);
                call.resource == "deployments"
                    && matches!(call.verb, "create" | "patch")
                    && call.sent <= self.call.begun
                    && call.arrived.is_some_and(|at| self.case.has_policy(at))
                    && answer.is_some_and(|answer| fields(answer) == is)
            })
        };
        is_going(deployment) || is == asked || is_overruled()
    }
}

/// Returns the name of the object that a live read is about.
fn looked_up(call: &Call) -> Option<&str> {
    let rest = call.path.split("metadata.name%3D").nth(1)?;
    rest.split('&').next()
}

/// Value of the label `app` of all Deployments and pods.
const APP: &str = "nginx";

/// `Ready` and `Progressing` after the progress deadline.
const GAVE_UP: (&str, &str) = ("False", "ProgressDeadlineExceeded");
const OVERRULED: (&str, &str) = ("False", "DeploymentOverruled");
/// `Ready` and `Progressing` of a Deployment whose pods are rejected. `HELD`: of a paused Deployment.
const FAILED: (&str, &str) = ("False", "ReplicaFailure");
const HELD: (&str, &str) = ("False", "DeploymentPaused");
/// `Ready` of a Foo that needs no intervention. Also `DELETING`.
const PROGRESSING: (&str, &str) = ("False", "DeploymentProgressing");
const DELETING: (&str, &str) = ("False", "DeploymentDeleting");

/// Returns the first condition that a rollout to this number of replicas waits for, as in `kubectl rollout status`.
fn lacks(deployment: &Value, asked: Option<i64>) -> String {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    let count = |field: &str| status[field].as_i64().unwrap_or_default();
    let specified = spec["replicas"].as_i64().unwrap_or(1);
    let asked = asked.unwrap_or(specified);
    let (all, updated, available) = (
        count("replicas"),
        count("updatedReplicas"),
        count("availableReplicas"),
    );
    let is_seen = status["observedGeneration"] == deployment["metadata"]["generation"];
    match (updated < specified, all - updated) {
        _ if !is_seen => "a change that the Deployment controller has not observed".to_owned(),
        (true, 0) => format!("{updated} of {asked} replicas created"),
        (true, _) => format!("{updated} of {asked} replicas updated"),
        (false, 0) => format!("{available} of {} replicas available", asked.max(updated)),
        (false, old) => format!("{old} old replica"),
    }
}

/// Returns `Ready` and `Progressing` for a Foo with this Deployment and this number of specified replicas.
pub fn verdicts(deployment: &Value, asked: Option<i32>) -> [(&'static str, &'static str); 2] {
    let is_seen =
        deployment["status"]["observedGeneration"] == deployment["metadata"]["generation"];
    if is_going(deployment) {
        ["False", "True"].map(|status| (status, "DeploymentDeleting"))
    } else if is_rolled_out(deployment)
        && asked.is_some_and(|asked| deployment["spec"]["replicas"] != asked)
    {
        [OVERRULED; 2]
    } else if is_rolled_out(deployment) {
        [
            ("True", "DeploymentAvailable"),
            ("False", "DeploymentComplete"),
        ]
    } else if is_seen && is_held(deployment) {
        [HELD; 2]
    } else if is_seen && failure(deployment).is_some() {
        [FAILED; 2]
    } else if is_seen && has_given_up(deployment) {
        [GAVE_UP; 2]
    } else {
        ["False", "True"].map(|status| (status, "DeploymentProgressing"))
    }
}

/// Returns the counts of this Deployment, in a status that names it `name`.
fn counts<'a>(deployment: &Value, name: &'a str) -> Counts<'a> {
    let status = &deployment["status"];
    let count = |field: &str| status[field].as_i64().unwrap_or_default();
    let labels = &deployment["spec"]["selector"]["matchLabels"];
    let labels = ["app", "controller"].map(|name| (name, text(&labels[name])));
    let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
    let labels: Vec<_> = labels
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    Counts {
        available: count("availableReplicas"),
        replicas: count("replicas"),
        selector: labels.join(","),
        name,
    }
}

/// Returns the condition whose time has changed although its status has not.
fn moved<'a>(before: &Value, after: &'a Value) -> Option<&'a str> {
    let mut after = conditions(after);
    after.find(|now| conditions(before).any(|was| is_moved(was, now)))?["type"].as_str()
}

/// Returns the condition whose status has changed although its time has not. Counts only a time that the same process set, with
/// a correct clock, more than some seconds before.
fn stays<'a>(case: &Case, revision: &'a Revision, call: &Call) -> Option<&'a str> {
    /// Timestamps have a resolution of one second.
    const SECONDS: Duration = Duration::from_secs(3);
    let (before, after) = (revision.before.as_deref()?, revision.after.as_deref()?);
    let mut faults = case.trace.faults.iter();
    if faults.any(|(_, fault)| fault.is_of_the_clock() && fault.is_about(call.who.replica)) {
        return None;
    }
    let is_stuck = |now: &&Value| {
        let was = |of: &Value, field: &str| {
            conditions(of).any(|was| was["type"] == now["type"] && was[field] == now[field])
        };
        let history = case.store.history().iter().enumerate();
        let mut its = history.filter(|(_, one)| one.key == revision.key);
        let first = its.find(|(_, one)| {
            let status = one.after.as_deref();
            status.is_some_and(|status| was(status, "lastTransitionTime"))
        });
        !was(before, "status")
            && was(before, "lastTransitionTime")
            && first.is_some_and(|(index, one)| {
                let writer = case.writer(index).map(|first| first.who);
                // Not the time of storage: a request to an API server that is paused has older timestamps.
                writer == Some(call.who) && made(one) + SECONDS < call.begun
            })
    };
    conditions(after).find(is_stuck)?["type"].as_str()
}

/// Returns the conditions of the controller. Other clients may add their own
/// ([`Others::Reviewed`](operator_testkit::api_server::Others::Reviewed)).
fn conditions(foo: &Value) -> impl Iterator<Item = &Value> {
    let conditions = foo["status"]["conditions"].as_array();
    let is_ours = |one: &&Value| ["Ready", "Progressing", "Stalled"].contains(&text(&one["type"]));
    conditions.into_iter().flatten().filter(is_ours)
}
