//! What Deployments are made from: nothing that their writer knew to be asked for no longer.

use serde_json::{Value, json};

use super::{
    super::{api::Kind, trace::Call, users::NAMESPACE},
    Case, Violation,
    converge::{owner, text},
    made, named, rates,
    warnings::foo_of,
};
use crate::invariants::GENERATION;

/// I16: what is asked for of a Deployment, and as of which generation, is what the Foo that it belongs to, and no other one of that
/// name, asks for: as its writer was told of last, by the watch, a look or the answer to a write, or has asked since. Where the
/// Foo does not say how many replicas, [`super::writes::replicas`] judges.
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

/// What the Foo of this name may have been to who sent this: as it was told of last when its reconcile began, or in that, and
/// all that it has become since.
fn states<'a>(case: &'a Case<'a>, call: &'a Call, name: &str) -> Vec<&'a Value> {
    let all = case.foos.get(name).map_or(&[][..], Vec::as_slice);
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
        // Of a conflict, what it was based on is no more; the next version that the watch tells may not be the last one.
        let base = text(&other.body["metadata"]["resourceVersion"]).parse::<u64>();
        let known = match base.ok().filter(|_| code == 409) {
            Some(base) => all.partition_point(|one| one.version <= base) + 1,
            None => all.partition_point(|one| made(one) < arrived),
        };
        (rates::foo_of(other) == Some(name)).then_some(known)
    });
    let by_an_answer = answers.next().unwrap_or_default();
    // What was answered of an object is forgotten once the watch tells of another one of its name, be it one from before; and that
    // there is none, once it tells of one.
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

/// Whether this changes the replicas, and nothing else, of the Deployment of an earlier name that serves this Foo.
fn scales_what_serves(call: &Call, foo: &Value, name: &str) -> bool {
    let metadata = call.body["metadata"].as_object().into_iter().flatten();
    let mut fields = metadata.map(|(field, _)| &**field);
    call.verb == "patch"
        && name == text(&foo["status"]["deploymentName"])
        && call.body["spec"] == json!({ "replicas": foo["spec"]["replicas"] })
        && fields.all(|field| ["annotations", "uid", "resourceVersion"].contains(&field))
}

/// Whether this says what this Foo, as it is here, asks for.
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
