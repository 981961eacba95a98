//! No write is repeated without a reason, and `spec.replicas` is written only if the Foo specifies it.

use std::collections::BTreeMap;

use operator_simulation::{
    judge::{Case, Violation, fields::owner, made, named},
    trace::Call,
};
use operator_testkit::api_server::{Key, Kind, Revision};
use serde_json::Value;

use super::{
    super::{FOO, invariants::GENERATION},
    known::Known,
};

/// A process does not repeat a successful write until the object has changed, even if admission stored a different object. A list
/// of the resource type is a reason to repeat it, because the schema may have changed.
pub fn asked_once(case: &Case, found: &mut Vec<Violation>) {
    let mut asked = BTreeMap::<_, Vec<(Value, &Call)>>::new();
    for call in &case.trace.calls {
        let is_about = matches!(
            (call.verb, &*call.resource),
            ("patch", "deployments") | ("update", "foos/status")
        );
        let Some((answered, _)) = call.answered.filter(|_| call.code == Some(200)) else {
            continue;
        };
        if !is_about || call.fault.is_some() {
            continue;
        }
        let (path, _) = call.path.split_once('?').unwrap_or((&call.path, ""));
        let before = asked.entry((call.who, path)).or_default();
        let body = timeless(&call.body);
        let has_changed = |from: usize, to: usize| {
            let all = case.store.history().get(from..to);
            all.is_none_or(|all| all.iter().any(|one| is_at(&one.key, path)))
        };
        let is_done = before.iter().any(|(earlier, other)| {
            *earlier == body
                && other.answered.is_some_and(|(at, _)| at <= call.sent)
                && !has_changed(other.written.end, call.written.start)
                && !is_given_up(case, other)
                && !has_listed(case, other, call)
        });
        if is_done {
            found.push(Violation {
                invariant: "I6",
                at: answered,
                object: path.to_owned(),
                what: format!("{} asks again what is done: {body}", call.who),
            });
        }
        before.push((body, call));
    }
}

/// Returns whether the sender of both calls has read a list of the resource type in between.
fn has_listed(case: &Case, earlier: &Call, later: &Call) -> bool {
    let kind = later.resource.trim_end_matches("/status");
    let mut calls = case.trace.calls.iter();
    calls.any(|call| {
        call.who == later.who
            && call.resource == kind
            && matches!(call.verb, "list" | "stream")
            && !call.path.contains("fieldSelector")
            && call.begun <= later.sent
            && call.answered.is_none_or(|(at, _)| at >= earlier.begun)
    })
}

/// Returns whether the reconcile that sent this call had ended when the response came.
fn is_given_up(case: &Case, call: &Call) -> bool {
    let of_status = call.path.split('?').next().unwrap_or_default();
    let of_status = of_status.strip_suffix("/status");
    let foo = of_status.and_then(|path| path.rsplit('/').next());
    let mut its = case.trace.reconciles.iter();
    its.any(|one| {
        let is_its = foo.is_none_or(|foo| one.key.ends_with(&format!("/{foo}")));
        let (ended, answered) = (one.ended, call.answered.map(|(at, _)| at));
        let is_over = ended.is_some_and(|ended| ended >= call.begun && Some(ended) < answered);
        one.who == call.who && is_its && one.begun <= call.begun && is_over
    })
}

/// Returns the body without the fields that differ each time.
fn timeless(body: &Value) -> Value {
    let mut body = body.clone();
    body["metadata"]["resourceVersion"] = Value::Null;
    let conditions = body["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten() {
        condition["lastTransitionTime"] = Value::Null;
    }
    body
}

fn is_at(key: &Key, path: &str) -> bool {
    let kind = match key.kind {
        Kind::Deployment => "deployments",
        Kind::Custom(_) => "foos",
        _ => return false,
    };
    path.trim_end_matches("/status")
        .ends_with(&format!("/{}/{kind}/{}", key.namespace, key.name))
}

/// A Deployment's replicas are written only if its Foo specifies them in the generation that the write is made from, and with
/// that value. A new Deployment may begin with the replicas of another Deployment of the Foo, as its writer knows it.
pub fn replicas(case: &Case, found: &mut Vec<Violation>) {
    let history = case.store.history();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // Replicas that each generation of a Foo (by UID) specified. A restored backup may repeat a generation with another value.
    let mut said = BTreeMap::<(String, i64), Vec<Value>>::new();
    for (index, revision) in history.iter().enumerate() {
        let Revision { key, after, .. } = &**revision;
        let Some(after) = after.as_deref() else {
            continue;
        };
        let (metadata, spec) = (&after["metadata"], &after["spec"]);
        if key.kind == FOO {
            let generation = metadata["generation"].as_i64().unwrap_or_default();
            let says = said.entry((text(&metadata["uid"]), generation));
            says.or_default().push(spec["replicas"].clone());
        }
        if key.kind != Kind::Deployment {
            continue;
        }
        let foo = owner(after);
        let generation = text(&metadata["annotations"][GENERATION])
            .parse()
            .unwrap_or(0);
        let writer = case
            .writer(index)
            .filter(|call| matches!(call.verb, "create" | "patch"));
        let wanted = said.get(&(foo.to_owned(), generation));
        if let Some((call, wanted)) = writer.zip(wanted) {
            let asked = &call.body["spec"]["replicas"];
            let goes_on = || call.verb == "create" && goes_on(case, call, after);
            let is_replaced = || wanted.contains(&Value::Null) && goes_on();
            if !asked.is_null() && !wanted.contains(asked) && !is_replaced() {
                found.push(Violation {
                    invariant: "A3",
                    at: made(revision),
                    object: named(key),
                    what: format!("is given {asked} replicas, and its Foo says {wanted:?}"),
                });
            }
        }
    }
}

/// Returns whether this new Deployment begins with the replicas of another Deployment of its Foo, in a state that the writer
/// may have known.
fn goes_on(case: &Case, call: &Call, new: &Value) -> bool {
    let metadata = &new["metadata"];
    let foo = &metadata["ownerReferences"][0]["name"];
    let known = Known::new(case, call, foo.as_str().unwrap_or_default());
    let others = case.names_of(Kind::Deployment);
    let mut others = others.filter(|name| metadata["name"] != **name);
    others.any(|name| {
        let mut states = known.states(name).into_iter().flatten();
        states.any(|one| {
            owner(one) == owner(new) && one["spec"]["replicas"] == call.body["spec"]["replicas"]
        })
    })
}
