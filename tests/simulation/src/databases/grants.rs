//! Contents of Secrets in another namespace than the Databases that refer to them.
//!
//! A replica acts by its caches, which are late and never early. At a time `t`, the cache of a process may have any state that
//! was stored between the last version that the process had received and read by `t` ([`Case::told`]) and the newest version at
//! `t`. An action is a violation only if no such state permits it:
//!
//! - A GET of a Secret requires a Database that refers to the Secret in a possible state, and a possible state of the
//!   Secret that grants the access to the namespace of the Database, or the same namespace.
//! - A write with a password's fingerprint requires a possible state of the Secret since the beginning of the reconcile that grants
//!   access, and, before the write, a stored version with this password that grants it. The content may be older
//!   than the metadata, because reads may fail for any time.

use std::collections::{BTreeMap, BTreeSet};

use operator_simulation::{
    judge::{Case, Violation, fields::text, made, named},
    trace::{Call, Time},
};
use operator_testkit::api_server::{Key, Kind};
use serde_json::Value;

use super::GROUP;

/// Returns whether the annotation of an object grants the access to this namespace.
pub fn grants(object: &Value, namespace: &str) -> bool {
    let granted = text(&object["metadata"]["annotations"][format!("{GROUP}/grant-to")]);
    let mut granted = granted.split(',').map(str::trim);
    granted.any(|to| to == "*" || to == namespace)
}

/// Returns the Secret that a Database in this namespace refers to.
pub fn secret_of(namespace: &str, database: &Value) -> Key {
    let password = &database["spec"]["password"];
    let namespace = password["namespace"].as_str().unwrap_or(namespace);
    Key::new(Kind::Secret, namespace, text(&password["name"]))
}

/// Returns the fingerprint of a Secret's password, as it is in the Deployment.
pub fn fingerprint(secret: &Value) -> String {
    let password = text(&secret["data"]["password"]);
    let hash = ring::digest::digest(&ring::digest::SHA256, password.as_bytes());
    format!("{hash:?}")
}

/// Returns the states of an object that were stored between this version and this time.
pub fn states<'a>(case: &'a Case, key: &Key, since: u64, until: Time) -> Vec<&'a Value> {
    let history = case.store.history().iter();
    let its = history.filter(|one| one.key == *key && made(one) <= until);
    let (before, after): (Vec<_>, Vec<_>) = its.partition(|one| one.version <= since);
    let all = before.last().into_iter().copied().chain(after);
    all.filter_map(|one| one.after.as_deref()).collect()
}

/// Returns the states that the cache of the sender may have had between `from` and the call.
fn cached<'a>(case: &'a Case, call: &Call, key: &'a Key, from: Time) -> Vec<&'a Value> {
    let since = case.told(call.who, key.kind.info().plural, from);
    states(case, key, since, call.begun)
}

pub fn are_kept(case: &Case, found: &mut Vec<Violation>) {
    let mut databases = BTreeSet::new();
    let mut passwords = BTreeMap::<_, Vec<_>>::new();
    for revision in case.store.history() {
        let key = &revision.key;
        match (key.kind, revision.after.as_deref()) {
            (Kind::Custom(kind), _) if kind.plural == "databases" => {
                databases.insert(key);
            }
            (Kind::Secret, Some(secret)) => {
                let its = passwords.entry(fingerprint(secret)).or_default();
                its.push((key, secret, made(revision)));
            }
            _ => {}
        }
    }
    for call in &case.trace.calls {
        let what = match (call.verb, &*call.resource) {
            ("get", "secrets") => {
                let key = read(call);
                let secret = cached(case, call, &key, call.begun);
                let may_read = |database: &&Key| {
                    let namespace = &*database.namespace;
                    let is_granted = || secret.iter().any(|it| grants(it, namespace));
                    let mut states = cached(case, call, database, call.begun).into_iter();
                    states.any(|it| secret_of(namespace, it) == key)
                        && (namespace == key.namespace || is_granted())
                };
                let is_fine = !secret.is_empty() && databases.iter().any(may_read);
                (!is_fine).then_some((key, "reads the content"))
            }
            ("create" | "patch", "deployments") => written(case, call, &passwords),
            _ => None,
        };
        found.extend(what.map(|(key, what)| Violation {
            invariant: "I19",
            at: call.begun,
            object: named(&key),
            what: format!("{} {what} without a grant", call.who),
        }));
    }
}

/// Versions of all Secrets by the fingerprint of their password, with their time.
type Passwords<'a> = BTreeMap<String, Vec<(&'a Key, &'a Value, Time)>>;

/// Returns the Secret whose password is in this write, if no grant permits that.
fn written(case: &Case, call: &Call, passwords: &Passwords<'_>) -> Option<(Key, &'static str)> {
    let pod = &call.body["spec"]["template"]["spec"];
    let versions = passwords.get(text(&pod["containers"][0]["args"][1]))?;
    let (key, _, _) = versions.first()?;
    let mut parts = call.path.split('/').skip_while(|it| *it != "namespaces");
    let namespace = parts.nth(1).unwrap_or_default();
    if key.namespace == namespace {
        return None;
    }
    let begun = case.reconcile_begun(call, namespace);
    let mut states = cached(case, call, key, begun).into_iter();
    let is_granted = states.any(|it| grants(it, namespace));
    let mut versions = versions.iter();
    let was_granted =
        versions.any(|(_, secret, at)| *at <= call.begun && grants(secret, namespace));
    (!is_granted || !was_granted).then(|| (Key::clone(key), "writes the fingerprint"))
}

/// Returns the object that a GET reads.
fn read(call: &Call) -> Key {
    let path = call.path.split('?').next().unwrap_or_default();
    let mut parts = path.rsplit('/');
    let name = parts.next().unwrap_or_default();
    let namespace = parts.nth(1).unwrap_or_default();
    Key::new(Kind::Secret, namespace, name)
}
