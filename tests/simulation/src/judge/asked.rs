//! A Deployment is never written from a spec that its writer knew to be outdated.

use operator_simulation::{
    judge::{
        Case, Violation,
        fields::{owner, text},
        made, named,
    },
    trace::Call,
};
use operator_testkit::api_server::Kind;
use serde_json::{Value, json};

use super::{
    super::{FOO, invariants::GENERATION, users::NAMESPACE},
    rates,
    warnings::foo_of,
};

/// The spec and generation in a written Deployment come from its controlling Foo (by UID), in a state that its writer may have
/// known.
///
/// The oldest such state is the last state that the writer learned from the watch, a live read or the response to a write. Later
/// states count until the call began. If the Foo does not specify replicas, [`super::writes::replicas`] judges them.
pub fn check(case: &Case, found: &mut Vec<Violation>) {
    for (index, revision) in case.store.history().iter().enumerate() {
        let writer = case.writer(index).filter(|call| {
            revision.key.kind == Kind::Deployment && matches!(call.verb, "create" | "patch")
        });
        let Some((call, after)) = writer.zip(revision.after.as_deref()) else {
            continue;
        };
        let foo = foo_of(case, call).unwrap_or_default();
        let states = states(case, call, foo);
        if states.iter().any(|foo| {
            owner(after) == text(&foo["metadata"]["uid"])
                && (revision.key.name == text(&foo["spec"]["deploymentName"])
                    || scales_what_serves(call, foo, &revision.key.name))
                && is_of(case, call, foo)
        }) {
            continue;
        }
        let asked = states.iter().map(|foo| {
            let generation = &foo["metadata"]["generation"];
            format!("{generation}: {}", foo["spec"])
        });
        let asked: Vec<_> = asked.collect();
        found.push(Violation {
            invariant: "I16",
            at: made(revision),
            object: named(&revision.key),
            what: format!(
                "is asked for what {foo:?} did not ask for, as far as its writer knew: {}; that was {asked:?}",
                call.body
            ),
        });
    }
}

/// Returns the states that the Foo of this name may have had for the sender: the last state that the sender knew, and all later
/// ones until the call began.
fn states<'a>(case: &'a Case<'a>, call: &'a Call, name: &str) -> Vec<&'a Value> {
    let all = case.history_of(FOO, name);
    let reconcile = case.reconcile_of(call, &format!("{NAMESPACE}/{name}"));
    let begun = reconcile.map_or(call.begun, |one| one.begun);
    let told = case.told(call.who, "foos", begun);
    let by_the_watch = all.partition_point(|one| one.version <= told);
    let its = case.trace.calls.iter().rev();
    let its = its.filter(|other| other.who == call.who && !other.is_spoilt());
    let mut answers = its.filter_map(|other| {
        let (at, code) = other.answered?;
        let is_known = match (other.verb, &*other.resource) {
            ("update", "foos/status") => at <= begun && matches!(code, 200 | 409),
            ("list", "foos") => at <= call.begun && code == 200,
            _ => false,
        };
        let arrived = other.arrived.filter(|_| is_known)?;
        // A conflict proves only that a version newer than the base exists. The next version from the watch may not be the
        // latest.
        let base = text(&other.body["metadata"]["resourceVersion"]).parse::<u64>();
        let known = match base.ok().filter(|_| code == 409) {
            Some(base) => all.partition_point(|one| one.version <= base) + 1,
            None => all.partition_point(|one| made(one) < arrived),
        };
        (rates::foo_of(other) == Some(name)).then_some(known)
    });
    let by_an_answer = answers.next().unwrap_or_default();
    // A response counts only while the watch shows an object of the same UID. The watch replaces it with any other object of
    // the name, even an older object.
    let uid = |next: usize| {
        let last = all.get(next.checked_sub(1)?)?.after.as_deref()?;
        last["metadata"]["uid"].as_str()
    };
    let known = if uid(by_an_answer).is_some() && uid(by_an_answer) == uid(by_the_watch) {
        by_the_watch.max(by_an_answer)
    } else {
        by_the_watch
    };
    let first = known.saturating_sub(1);
    let since = all[first..].iter();
    let since = since.take_while(|one| made(one) <= call.begun);
    since.filter_map(|one| one.after.as_deref()).collect()
}

/// Returns whether the call changes only replicas and annotations of a Deployment that serves this Foo under an earlier name.
fn scales_what_serves(call: &Call, foo: &Value, name: &str) -> bool {
    let metadata = call.body["metadata"].as_object().into_iter().flatten();
    let mut fields = metadata.map(|(field, _)| &**field);
    call.verb == "patch"
        && name == text(&foo["status"]["deploymentName"])
        && call.body["spec"] == json!({ "replicas": foo["spec"]["replicas"] })
        && fields.all(|field| ["annotations", "uid", "resourceVersion"].contains(&field))
}

/// Returns whether the call writes the spec and the generation of this state of the Foo.
fn is_of(case: &Case, call: &Call, foo: &Value) -> bool {
    let asks = |pointer: &str, wanted: &Value| {
        let asked = call.body.pointer(pointer);
        asked.is_none_or(|asked| asked == wanted)
    };
    let life = case.life(call.who);
    let image = life.map_or("", |life| life.settings.image);
    let (metadata, replicas) = (&foo["metadata"], &foo["spec"]["replicas"]);
    let generation = metadata["generation"].to_string();
    call.body["metadata"]["annotations"][GENERATION] == *generation
        && (replicas.is_null() || asks("/spec/replicas", replicas))
        && asks("/spec/template/spec/containers/0/image", &json!(image))
        && ["/metadata", "/spec/template/metadata"]
            .iter()
            .all(|of| asks(&format!("{of}/labels/controller"), &metadata["name"]))
}
