//! A Deployment is changed only as its Foo specifies, and from a version that was read.

use std::{
    collections::{BTreeMap, BTreeSet},
    ptr,
};

use operator_simulation::{
    judge::{
        Case, Violation,
        fields::{owner, text},
        made, named,
    },
    trace::{Call, Time, Who, seconds},
};
use operator_testkit::api_server::{Key, Kind, Others, Revision};
use serde_json::Value;

use super::{
    super::{
        FOO,
        invariants::{GENERATION, MADE_FOR},
    },
    known::{Known, sent_since},
    statuses::is_rolled_out,
};

/// Maximum number of creations of a Deployment for a deleted or terminating Foo, until the leader's watch delivers the
/// deletion. Each leader creates it ten times without delay, and then with exponential backoff (docs/foo.md).
const OF_THE_GONE: usize = 15;

/// State of the objects at a point of the store's history.
#[derive(Default)]
struct State<'a> {
    /// Last state of each Foo, by UID.
    foos: BTreeMap<&'a str, &'a Value>,
    /// When a Foo was deleted or began to terminate, with the version, by UID.
    going: BTreeMap<&'a str, (Time, u64)>,
    /// UIDs of the Deployments that replicas wrote.
    ours: BTreeSet<&'a str>,
    /// Deployments that a Foo has specified, with the time, by the Foo's UID.
    asked_for: BTreeMap<&'a str, Vec<(Time, &'a str)>>,
    /// Deployments that the status of a Foo has named, with the Foo's UID.
    served: BTreeSet<(&'a str, &'a str)>,
    deployments: BTreeMap<Key, Deployment>,
    /// Creations of a Deployment for a Foo that is gone, by process, Foo's UID, Deployment's name, and whether the response was
    /// lost.
    of_the_gone: BTreeMap<(Who, &'a str, &'a str, bool), usize>,
}

/// Deployment that exists or has existed, created by any client.
#[derive(Default)]
struct Deployment {
    owner: String,
    uid: String,
    /// Foo (by UID) for which the Deployment was complete, if any, and since when. Includes earlier Deployments of the same
    /// name.
    complete_for: Vec<(Time, Option<String>)>,
}

/// Each change names the UID and the resourceVersion that it is based on.
pub fn was_read(case: &Case, found: &mut Vec<Violation>) {
    for call in &case.trace.calls {
        let names = match (call.verb, &*call.resource) {
            ("patch", "deployments") | ("update", "foos/status") => &call.body["metadata"],
            ("delete", "deployments") => &call.body["preconditions"],
            _ => continue,
        };
        if names["uid"].is_string() && names["resourceVersion"].is_string() {
            continue;
        }
        found.push(Violation {
            invariant: "I16",
            at: call.sent,
            object: call.who.to_string(),
            what: format!("{} {} on no condition", call.verb, call.path),
        });
    }
}

/// Checks each write of a Deployment by a replica:
///
/// - A Deployment is deleted only if its Foo no longer names it, and a live read has just shown its replacement to be complete.
/// - It is deleted only if a replica wrote it or the Foo's status named it.
/// - It is not deleted for a Foo that was seen to be terminating: the garbage collector deletes it.
/// - None is created for a Foo that its writer knew to be terminating, and none repeatedly for a deleted Foo.
/// - If the Foo does not specify replicas, the next Deployment begins with the replicas of the previous one.
/// - A patch changes only Deployments that a Foo controls, and only the fields that the Foo determines.
pub fn check(case: &Case, found: &mut Vec<Violation>) {
    let mut state = State::default();
    for (index, revision) in case.store.history().iter().enumerate() {
        let writer = case.writer(index);
        if revision.key.kind == Kind::Deployment
            && let Some(call) = writer
            && let Some((invariant, what)) = state.wrong(case, revision, call)
        {
            found.push(Violation {
                invariant,
                at: made(revision),
                object: named(&revision.key),
                what,
            });
        }
        state.comes_to(revision, writer.is_some());
    }
}

pub fn is_going(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn uid(object: &Value) -> &str {
    text(&object["metadata"]["uid"])
}

fn asked_for(foo: &Value) -> &str {
    text(&foo["spec"]["deploymentName"])
}

impl<'a> State<'a> {
    fn comes_to(&mut self, revision: &'a Revision, by_us: bool) {
        let (before, after) = (revision.before.as_deref(), revision.after.as_deref());
        match revision.key.kind {
            Kind::Custom(_) => {
                let Some(foo) = after.or(before) else {
                    return;
                };
                let uid = uid(foo);
                if before.is_none_or(|before| asked_for(before) != asked_for(foo)) {
                    let its = self.asked_for.entry(uid).or_default();
                    its.push((made(revision), asked_for(foo)));
                }
                if after.is_none_or(is_going) {
                    let since = (made(revision), revision.version);
                    self.going.entry(uid).or_insert(since);
                } else {
                    // A restored backup brings the Foo back.
                    self.going.remove(uid);
                }
                self.served
                    .insert((uid, text(&foo["status"]["deploymentName"])));
                self.foos.insert(uid, foo);
            }
            Kind::Deployment => {
                let one = self.deployments.entry(revision.key.clone()).or_default();
                if before.is_none() {
                    *one = Deployment {
                        complete_for: std::mem::take(&mut one.complete_for),
                        ..Deployment::default()
                    };
                }
                if by_us {
                    self.ours.extend(after.or(before).map(uid));
                }
                let complete = after.filter(|after| !is_going(after) && is_rolled_out(after));
                let complete_for = complete.map(|after| owner(after).to_owned());
                one.complete_for.push((made(revision), complete_for));
                if let Some(after) = after {
                    owner(after).clone_into(&mut one.owner);
                    uid(after).clone_into(&mut one.uid);
                }
            }
            _ => {}
        }
    }

    fn wrong(
        &mut self,
        case: &Case,
        revision: &'a Revision,
        call: &Call,
    ) -> Option<(&'static str, String)> {
        let (before, after) = (revision.before.as_deref(), revision.after.as_deref());
        let foo = self.foos.get(owner(before.or(after)?)).copied();
        let (invariant, what) = match (before, after) {
            (None, _) => {
                let foo = foo?;
                let what = match self.going.get(uid(foo)) {
                    Some((_, version)) => self.is_of_the_gone(case, foo, *version, revision, call),
                    None => begins_anew(case, foo, &revision.key, call),
                };
                ("I16", what)
            }
            (Some(old), after) if !is_going(old) && after.is_none_or(is_going) => {
                ("I16", self.is_too_early(case, foo?, &revision.key, call))
            }
            (Some(old), Some(new)) => {
                let of_others = |deployment: &Value| {
                    let mut its = of_others(deployment);
                    // The policy of another client may add this label.
                    if case.has_policy(made(revision)) {
                        its["metadata"]["labels"][Others::TEAM] = Value::Null;
                    }
                    its
                };
                let what = match foo {
                    None => Some("no Foo's"),
                    Some(_) => (of_others(old) != of_others(new)).then_some("not its Foo's to say"),
                };
                ("I5", what.map(|what| format!("changed, and was {what}")))
            }
            (Some(_), None) => return None,
        };
        what.map(|what| (invariant, what))
    }

    /// Returns the violation, if any, of a creation for a Foo that is terminating or deleted as of this version.
    fn is_of_the_gone(
        &mut self,
        case: &Case,
        foo: &'a Value,
        version: u64,
        revision: &'a Revision,
        call: &Call,
    ) -> Option<String> {
        // If the CRD is missing, no response names the deleted Foo.
        if case.is_undefined(call.begun) {
            return None;
        }
        let [namespace, name] = ["namespace", "name"].map(|field| text(&foo["metadata"][field]));
        let reconcile = case.reconcile_of(call, &format!("{namespace}/{name}"));
        let begun = reconcile.map_or(call.begun, |one| one.begun);
        if case.told(call.who, "foos", begun) >= version {
            return Some("created for a Foo of which its writer was told that it goes".to_owned());
        }
        // Creations with an unknown outcome are counted separately.
        let of = (call.who, uid(foo), &*revision.key.name, call.is_spoilt());
        let times = self.of_the_gone.entry(of);
        let times = times.or_default();
        *times += 1;
        (*times > OF_THE_GONE).then(|| format!("created {times} times for a Foo that is gone"))
    }

    /// Returns the violation of a deletion, if any.
    fn is_too_early(&self, case: &Case, foo: &Value, key: &Key, call: &Call) -> Option<String> {
        let uid = uid(foo);
        // The process has read the Foo and the other Deployment right before. It cannot know of later changes: a deletion has
        // no precondition on another object.
        let looks = self.looks_before(case, foo, call);
        let looked = |resource, name| {
            let this_one = format!("metadata.name%3D{name}");
            let mut looks = looks.iter();
            let look =
                looks.find(|look| look.resource == resource && look.path.ends_with(&this_one));
            look.and_then(|look| look.arrived)
        };
        let at_the_foo = looked("foos", text(&foo["metadata"]["name"]));
        if let Some((since, _)) = self.going.get(uid) {
            let was_there = at_the_foo.is_some_and(|at| at <= *since);
            return (!was_there).then(|| "deleted for a Foo that was seen to go".to_owned());
        }
        let mut known = self.asked_for.get(uid)?.iter().rev();
        let (_, wanted) = known.find(|(since, _)| at_the_foo.is_none_or(|at| *since < at))?;
        if *wanted == key.name {
            return Some("deleted, and its Foo asks for it".to_owned());
        }
        let one = self.deployments.get(key)?;
        if !self.ours.contains(&*one.uid) && !self.served.contains(&(uid, &*key.name)) {
            return Some("deleted, and it was nobody's of ours".to_owned());
        }
        let new = self
            .deployments
            .get(&Key::new(key.kind, &key.namespace, wanted));
        let looked = looked("deployments", wanted);
        let served = looked.is_some_and(|at| new.is_some_and(|new| new.was_complete(uid, at)));
        (!served).then(|| {
            let looked = looked.map_or_else(
                || "not looked at".to_owned(),
                |at| format!("looked at at {}", seconds(at)),
            );
            format!("deleted, and {wanted} was {looked} right before, or not complete then")
        })
    }

    /// Returns the live reads that the reconcile of this call has sent since its last write, and that were answered. The newest
    /// is first.
    fn looks_before<'c>(&self, case: &'c Case<'c>, foo: &Value, call: &'c Call) -> Vec<&'c Call> {
        let metadata = &foo["metadata"];
        let [namespace, name] = ["namespace", "name"].map(|field| text(&metadata[field]));
        let Some(reconcile) = case.reconcile_of(call, &format!("{namespace}/{name}")) else {
            return Vec::new();
        };
        let sent = sent_since(case, call, reconcile.begun);
        let before = sent.skip_while(|other| !ptr::eq(*other, call)).skip(1);
        let before = before.take_while(|other| !self.writes_for(foo, other));
        let looks = before.filter(|other| {
            other.verb == "list"
                && !other.is_spoilt()
                && (other.answered).is_some_and(|(at, code)| at <= call.begun && code == 200)
        });
        looks.collect()
    }

    /// Returns whether the call writes the Foo's status or a Deployment of this Foo.
    fn writes_for(&self, foo: &Value, call: &Call) -> bool {
        let (path, _) = call.path.split_once('?').unwrap_or((&call.path, ""));
        let metadata = &foo["metadata"];
        match (call.verb, &*call.resource) {
            ("update", "foos/status") => {
                path.ends_with(&format!("/{}/status", text(&metadata["name"])))
            }
            ("create", "deployments") => owner(&call.body) == uid(foo),
            ("patch" | "delete", "deployments") => {
                let name = path.rsplit('/').next().unwrap_or_default();
                let key = Key::new(Kind::Deployment, text(&metadata["namespace"]), name);
                let one = self.deployments.get(&key);
                one.is_some_and(|one| one.owner == uid(foo))
            }
            _ => false,
        }
    }
}

/// Returns the Deployment without the fields that its Foo determines: labels, replicas, image, and the annotations about the
/// Foo.
fn of_others(deployment: &Value) -> Value {
    let mut rest = deployment.clone();
    let metadata = &mut rest["metadata"];
    for field in ["resourceVersion", "generation", "managedFields"] {
        metadata[field] = Value::Null;
    }
    for name in [GENERATION, MADE_FOR] {
        metadata["annotations"][name] = Value::Null;
    }
    for of in ["/metadata", "/spec/template/metadata"] {
        for name in ["app", "controller"] {
            rest.pointer_mut(of).unwrap()["labels"][name] = Value::Null;
        }
    }
    rest["spec"]["replicas"] = Value::Null;
    rest["spec"]["template"]["spec"]["containers"][0]["image"] = Value::Null;
    rest
}

/// Returns the violation, if any, of a new Deployment for a Foo that does not specify replicas. If the writer still used an
/// earlier spec with replicas, [`super::writes::replicas`] judges it.
fn begins_anew(case: &Case, foo: &Value, key: &Key, call: &Call) -> Option<String> {
    let served = text(&foo["status"]["deploymentName"]);
    let made_from = text(&call.body["metadata"]["annotations"][GENERATION]).parse();
    let is_of_this =
        made_from.is_ok_and(|made_from: i64| foo["metadata"]["generation"] == made_from);
    if !is_of_this || served == key.name || said_how_many(case, foo) {
        return None;
    }
    let begins = &call.body["spec"]["replicas"];
    let states = Known::new(case, call, text(&foo["metadata"]["name"])).states(served);
    let had = |state: Option<&Value>| {
        let its = state.filter(|state| owner(state) == uid(foo));
        its.map(|its| its["spec"]["replicas"].clone())
    };
    let had: Option<Vec<_>> = states.into_iter().map(had).collect();
    // If the writer may have known of no Deployment of this name, it may have used another Deployment, or none.
    let had = had.filter(|had| !had.contains(begins))?;
    Some(format!(
        "begins with {begins} replicas in place of {served}, which had {had:?}"
    ))
}

/// Returns whether this Foo specifies replicas, or did in another state of the same generation, as after a restored backup.
fn said_how_many(case: &Case, foo: &Value) -> bool {
    let is_same = |other: &Value, field: &str| other["metadata"][field] == foo["metadata"][field];
    let mut versions = case.store.history().iter().filter_map(|one| {
        let foo = one.after.as_deref();
        foo.filter(|_| one.key.kind == FOO)
    });
    versions.any(|one| {
        is_same(one, "uid") && is_same(one, "generation") && !one["spec"]["replicas"].is_null()
    })
}

impl Deployment {
    /// Returns whether the Deployment was complete for this Foo at this time, before or after the changes of that moment.
    fn was_complete(&self, uid: &str, at: Time) -> bool {
        let before = self.complete_for.partition_point(|(since, _)| *since < at);
        let then = &self.complete_for[before.saturating_sub(1)..];
        let mut then = then.iter().take_while(|(since, _)| *since <= at);
        then.any(|(_, of)| of.as_deref() == Some(uid))
    }
}
