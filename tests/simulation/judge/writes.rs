//! What is asked of whom: nothing twice, and nothing that is not ours to say.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    super::{
        api::{Key, Kind, Revision},
        trace::Call,
    },
    Case, Violation,
    converge::owner,
    known::Known,
    made, named,
};
use crate::invariants::GENERATION;

/// I6: what a process has asked and been told that it is done it does not ask again, until the object has changed: whatever
/// was stored in its place. A list of its kind is a reason, since the schema may be another one.
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

/// Whether the sender of both has read a list of the kind in between.
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

/// Whether the reconcile that this was sent in was over when the answer came.
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

/// A body without what is different each time.
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
        Kind::Foo => "foos",
        _ => return false,
    };
    path.trim_end_matches("/status")
        .ends_with(&format!("/{}/{kind}/{}", key.namespace, key.name))
}

/// A3: a Deployment's replicas are written where its Foo says how many, in the generation that it is made from, and what it
/// says; else they are whose they are. A new one may begin with what one before it has, as its writer knows it.
pub fn replicas(case: &Case, found: &mut Vec<Violation>) {
    let history = case.store.history();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // What a Foo, by UID, said in each generation, of which a restored backup may bring about a second one of the same number.
    let mut said = BTreeMap::<(String, i64), Vec<Value>>::new();
    for (index, revision) in history.iter().enumerate() {
        let Revision { key, after, .. } = &**revision;
        let Some(after) = after.as_deref() else {
            continue;
        };
        let (metadata, spec) = (&after["metadata"], &after["spec"]);
        if key.kind == Kind::Foo {
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

/// Whether this new Deployment begins with as many replicas as another one of its Foo's had when its writer was last told of it, or
/// since.
fn goes_on(case: &Case, call: &Call, new: &Value) -> bool {
    let metadata = &new["metadata"];
    let foo = &metadata["ownerReferences"][0]["name"];
    let known = Known::new(case, call, foo.as_str().unwrap_or_default());
    let others = case.deployments.keys();
    let mut others = others.filter(|name| metadata["name"] != **name);
    others.any(|name| {
        let mut states = known.states(name).into_iter().flatten();
        states.any(|one| {
            owner(one) == owner(new) && one["spec"]["replicas"] == call.body["spec"]["replicas"]
        })
    })
}
