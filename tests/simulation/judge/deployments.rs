//! What is done to Deployments is what their Foo asks for, and is done to what was read: I5 and I16.

use std::{
    collections::{BTreeMap, BTreeSet},
    ptr,
};

use serde_json::Value;

use super::{
    super::{
        api::{Key, Kind, Others, Revision},
        trace::{Call, Time, Who, seconds},
    },
    Case, Violation,
    converge::{owner, text},
    known::{Known, sent_since},
    made, named,
    statuses::is_rolled_out,
};
use crate::invariants::{GENERATION, MADE_FOR};

/// How often a Deployment may be created for a Foo that is gone, or about to go, before the watch of who leads tells: what is
/// undone is made again ten times at once, then less and less often (docs/foo.md), by each who leads.
const OF_THE_GONE: usize = 15;

/// What the store's history has come to.
#[derive(Default)]
struct State<'a> {
    /// By UID, as they are or were last.
    foos: BTreeMap<&'a str, &'a Value>,
    /// By UID, since when a Foo is going or gone, and as of which version.
    going: BTreeMap<&'a str, (Time, u64)>,
    /// By UID, the Deployments that replicas wrote.
    ours: BTreeSet<&'a str>,
    /// By the Foo's UID, which Deployments it has asked for, and since when.
    asked_for: BTreeMap<&'a str, Vec<(Time, &'a str)>>,
    /// By the Foo's UID, the Deployments that its status has named.
    served: BTreeSet<(&'a str, &'a str)>,
    deployments: BTreeMap<Key, Deployment>,
    /// By the process, the Foo's UID and the Deployment's name, how often it was created for one that is gone.
    of_the_gone: BTreeMap<(Who, &'a str, &'a str, bool), usize>,
}

/// One that was there at some time, whoever made it.
#[derive(Default)]
struct Deployment {
    owner: String,
    uid: String,
    /// For which Foo, by UID, it has been complete, if for any, and since when: of all that had this name.
    complete_for: Vec<(Time, Option<String>)>,
}

/// I16: whatever is changed was read: each change names the UID and the version that it is based on.
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

/// I16: no Deployment is deleted that its Foo asks for, or unless what the Foo asks for instead was complete when it was
/// looked at right before, or that neither a replica made nor the Foo's status named, or whose Foo was seen to go (R8); none is
/// created for a Foo of which its writer was told that it goes, nor again and again for one that is gone; and where the Foo does not
/// say how many replicas, the next one begins with as many as the last one had. I5: what is patched is the Foo's before, and all
/// that is not ours to say stays.
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
            Kind::Foo => {
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
                    // Which a restored backup brings about.
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
                    // What a policy of others adds, it is that adds it.
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

    /// What is wrong with the creation of a Deployment for a Foo that is going, or gone, as of this version.
    fn is_of_the_gone(
        &mut self,
        case: &Case,
        foo: &'a Value,
        version: u64,
        revision: &'a Revision,
        call: &Call,
    ) -> Option<String> {
        // Where there are no Foos at all, no answer names one that is gone.
        if case.is_undefined(call.begun) {
            return None;
        }
        let [namespace, name] = ["namespace", "name"].map(|field| text(&foo["metadata"][field]));
        let reconcile = case.reconcile_of(call, &format!("{namespace}/{name}"));
        let begun = reconcile.map_or(call.begun, |one| one.begun);
        if case.told(call.who, "foos", begun) >= version {
            return Some("created for a Foo of which its writer was told that it goes".to_owned());
        }
        // Those are counted by themselves of which their writer does not know whether they were made.
        let of = (call.who, uid(foo), &*revision.key.name, call.is_spoilt());
        let times = self.of_the_gone.entry(of);
        let times = times.or_default();
        *times += 1;
        (*times > OF_THE_GONE).then(|| format!("created {times} times for a Foo that is gone"))
    }

    /// What is wrong with the deletion of a Deployment.
    fn is_too_early(&self, case: &Case, foo: &Value, key: &Key, call: &Call) -> Option<String> {
        let uid = uid(foo);
        // Who deletes it has looked at the Foo, and at the other Deployment, right before; what becomes of them since then
        // nobody can know: a deletion cannot depend on another object.
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

    /// The looks at single objects in the reconcile that this was sent in, since which that has written nothing: those that were
    /// answered, the newest first.
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

    /// Whether this is a write of the Foo's status, or of a Deployment of this Foo's.
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

/// A Deployment without what its Foo has a say in: labels, replicas, image, and what it was made from.
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

/// What is wrong with this Deployment, as it was asked for, of a Foo that does not say how many replicas; what it said before,
/// and its writer still went by, [`super::writes::replicas`] judges.
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
    // Where there may have been none of this name to its writer, it may have gone by another one, or by none.
    let had = had.filter(|had| !had.contains(begins))?;
    Some(format!(
        "begins with {begins} replicas in place of {served}, which had {had:?}"
    ))
}

/// Whether this Foo says how many replicas, or did in another generation of the same number, which a restored backup brings about.
fn said_how_many(case: &Case, foo: &Value) -> bool {
    let is_same = |other: &Value, field: &str| other["metadata"][field] == foo["metadata"][field];
    let mut versions = case.store.history().iter().filter_map(|one| {
        let foo = one.after.as_deref();
        foo.filter(|_| one.key.kind == Kind::Foo)
    });
    versions.any(|one| {
        is_same(one, "uid") && is_same(one, "generation") && !one["spec"]["replicas"].is_null()
    })
}

impl Deployment {
    /// Whether it was complete for this Foo at this time: before or after what happened just then.
    fn was_complete(&self, uid: &str, at: Time) -> bool {
        let before = self.complete_for.partition_point(|(since, _)| *since < at);
        let then = &self.complete_for[before.saturating_sub(1)..];
        let mut then = then.iter().take_while(|(since, _)| *since <= at);
        then.any(|(_, of)| of.as_deref() == Some(uid))
    }
}
