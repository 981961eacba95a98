//! Access to the objects of other namespaces.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use http::{Request, Response};
use k8s_openapi::api::core::v1::Secret;
use kube::{Client, client::Body};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::{
    api::{
        failure::Retry,
        kind::Kind,
        object::Object,
        plain::{Custom, Dependent, Fields, Spec},
        reference::References,
        reported::Status,
    },
    cache::store::Owners,
    config::app::tests::APP,
    reconcile::{plan::Plan, reconciler::Reconciler, writer::Writer},
    testing::Harness,
};

/// Refers to a Secret.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Tenant {
    password: ObjectRef,
}

impl Spec for Tenant {
    const KIND: Kind = Kind::custom("example.com", "v1", "Tenant", "tenants");
    type Status = Status;
    fn references(&self, to: &mut References<'_>) {
        to.object::<Dependent<Data>>(&self.password);
    }
}

/// Has the same spec, and is cluster-scoped.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Landlord {
    password: ObjectRef,
}

impl Spec for Landlord {
    const KIND: Kind = Kind::custom("example.com", "v1", "Landlord", "landlords").cluster_scoped();
    type Status = Status;
    fn references(&self, to: &mut References<'_>) {
        to.object::<Dependent<Data>>(&self.password);
    }
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
#[serde(default)]
struct Data {
    data: BTreeMap<String, String>,
}

impl Fields for Data {
    const KIND: Kind = Kind::of::<Secret>();
}

type Secrets = Arc<Store<Dependent<Data>>>;

/// Fails with the content of the Secret.
struct Reader<P: Primary> {
    primaries: Arc<Writer<P>>,
    secrets: Secrets,
    reference: fn(&P) -> &ObjectRef,
}

impl<P: Primary> Reader<P> {
    fn read(&self, cx: &View<'_, P>, seen: &Snapshot<P>) -> Result<String, ApiError> {
        let secret = cx.granted(&self.secrets, (self.reference)(seen))?;
        Ok(secret.fields.data["password"].clone())
    }
}

impl<P: Primary> Reconciler for Reader<P> {
    type Primary = P;
    type Error = ApiError;
    fn plan(&self, cx: &View<'_, P>, seen: &Snapshot<P>) -> Result<Plan<P>, ApiError> {
        Err(ApiError::Waiting(self.read(cx, seen)?))
    }
}

/// An API server that accepts each status.
fn client() -> Client {
    let service = service_fn(|_: Request<Body>| async {
        let metadata = json!({ "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "9" });
        let answer = json!({ "metadata": metadata }).to_string();
        Ok::<_, Infallible>(Response::new(Body::from(answer.into_bytes())))
    });
    Client::new(service, "default")
}

fn decoded<V: Cached>(object: &Value) -> Object<V> {
    serde_json::from_str(&object.to_string()).unwrap()
}

fn primary<V: Cached>(namespace: Option<&str>, password: &Value, version: u64) -> Object<V> {
    decoded(&json!({
        "metadata": { "name": "a", "namespace": namespace.unwrap_or_default(), "uid": "u", "resourceVersion": version.to_string(), "generation": 1 },
        "spec": { "password": password },
    }))
}

fn secret(key: &Key, grant: Option<&str>, password: &str, version: u64) -> Object<Dependent<Data>> {
    let annotations = grant.map(|grant| json!({ "example.com/grant-to": grant }));
    decoded(&json!({
        "metadata": { "name": key.name(), "namespace": key.namespace(), "uid": "s", "resourceVersion": version.to_string(),
                      "annotations": annotations },
        "data": { "password": password },
    }))
}

fn tenants() -> Harness<Reader<Custom<Tenant>>> {
    Harness::new(&APP, &client(), |builder| Reader {
        primaries: builder.primary(),
        secrets: builder.watches(),
        reference: |tenant: &Custom<Tenant>| &tenant.spec.as_ref().unwrap().password,
    })
}

fn landlords() -> Harness<Reader<Custom<Landlord>>> {
    Harness::new(&APP, &client(), |builder| Reader {
        primaries: builder.primary(),
        secrets: builder.watches(),
        reference: |landlord: &Custom<Landlord>| &landlord.spec.as_ref().unwrap().password,
    })
}

/// Returns the result of a read by the primary `a` in `namespace`.
fn read<P: Primary>(
    harness: &Harness<Reader<P>>,
    secrets: &Store<Dependent<Data>>,
    namespace: Option<&str>,
    to: &Value,
) -> Result<String, ApiError> {
    let (key, seen) =
        Store::<P>::new(&[None], Owners::default()).snapshot(primary(namespace, to, 1));
    let (cx, reader) = (harness.context(&key, &seen), harness.reconciler());
    let found = cx.view().granted(secrets, (reader.reference)(&seen))?;
    Ok(found.fields.data["password"].clone())
}

fn secrets_in(scopes: &[Option<String>], group: &'static str) -> Store<Dependent<Data>> {
    Store::new(scopes, Owners::new(group))
}

/// A spec cannot distinguish a missing object from an object without a grant, or from an unwatched object.
#[tokio::test]
async fn a_missing_object_and_a_missing_grant_are_the_same_error() {
    let harness = tenants();
    let watched = ["n", "other"].map(|namespace| Some(namespace.to_owned()));
    let listed = |secret: Option<Object<Dependent<Data>>>, scopes: &[Option<String>]| {
        let secrets = secrets_in(scopes, "example.com");
        for scope in 0..scopes.len() {
            secrets.list_begins(scope);
        }
        secret.and_then(|secret| secrets.apply(1, secret));
        for scope in 0..scopes.len() {
            secrets.list_ends(scope, 9);
        }
        secrets
    };
    let to = json!({ "name": "s", "namespace": "other" });
    let key = Key::new("other", "s");
    let denied = [
        listed(None, &watched),
        listed(Some(secret(&key, None, "p", 5)), &watched),
        listed(Some(secret(&key, Some("m,n2"), "p", 5)), &watched),
        listed(None, &watched[..1]),
    ];
    for secrets in denied {
        let error = read(&harness, &secrets, Some("n"), &to).unwrap_err();
        assert_eq!(
            (error.reason(), error.retry()),
            (Some("NotGranted"), Retry::OnChange)
        );
        assert_eq!(
            error.to_string(),
            "no access to Secret other/s: it does not exist, it is not watched, or its annotation \
             example.com/grant-to does not contain n"
        );
    }
    let granted = listed(Some(secret(&key, Some("m,n"), "p", 5)), &watched);
    assert_eq!(read(&harness, &granted, Some("n"), &to), Ok("p".to_owned()));
}

/// The namespace of the reconciled object is listed, but perhaps no other.
#[tokio::test]
async fn a_namespace_that_was_not_listed_denies_nothing() {
    let (harness, to) = (tenants(), json!({ "name": "s", "namespace": "other" }));
    let watched = ["n", "other"].map(|namespace| Some(namespace.to_owned()));
    let secrets = secrets_in(&watched, "example.com");
    for _ in 0..2 {
        secrets.list_begins(1);
        let error = read(&harness, &secrets, Some("n"), &to).unwrap_err();
        assert_eq!(
            (error.reason(), error.retry()),
            (None, Retry::Requeue),
            "{error}"
        );
    }
    secrets.list_ends(1, 9);
    secrets.list_begins(1);
    let error = read(&harness, &secrets, Some("n"), &to).unwrap_err();
    assert_eq!(error.name(), "NotGranted", "a later list");
}

/// An object of the own namespace needs no grant, and its absence is no secret.
#[tokio::test]
async fn an_object_of_the_same_namespace_needs_no_grant() {
    let harness = tenants();
    let secrets = &harness.reconciler().secrets;
    for to in [
        json!({ "name": "s" }),
        json!({ "name": "s", "namespace": "n" }),
        json!({ "name": "s", "namespace": "" }),
    ] {
        let missing = read(&harness, secrets, Some("n"), &to).unwrap_err();
        assert_eq!(missing, ApiError::Waiting("no Secret \"s\"".to_owned()));
        harness.apply(secrets, secret(&Key::new("n", "s"), None, "p", 5));
        assert_eq!(read(&harness, secrets, Some("n"), &to), Ok("p".to_owned()));
        harness.delete(secrets, &secret(&Key::new("n", "s"), None, "p", 6));
    }
}

/// The writers of a cluster-scoped object have permissions for the cluster, so the error may be specific.
#[tokio::test]
async fn a_cluster_scoped_object_needs_no_grant_but_a_namespace() {
    let harness = landlords();
    let secrets = &harness.reconciler().secrets;
    let to = json!({ "name": "s", "namespace": "other" });
    let missing = read(&harness, secrets, None, &to).unwrap_err();
    assert_eq!(missing, ApiError::Waiting("no Secret \"s\"".to_owned()));
    harness.apply(secrets, secret(&Key::new("other", "s"), None, "p", 5));
    assert_eq!(read(&harness, secrets, None, &to), Ok("p".to_owned()));
    let nowhere = read(&harness, secrets, None, &json!({ "name": "s" })).unwrap_err();
    let words = "Secret s: the reference has no namespace".to_owned();
    assert_eq!(nowhere, ApiError::InvalidSpec(words));
}

/// `require` never leaves the namespace, and finds mistakes about the scope of a resource type.
#[tokio::test]
async fn a_requirement_has_the_scope_of_its_type() {
    let harness = tenants();
    let seen = Store::<Custom<Tenant>>::new(&[None], Owners::default());
    let (key, seen) = seen.snapshot(primary(Some("n"), &json!({ "name": "s" }), 1));
    let cx = harness.context(&key, &seen);
    let secrets = &harness.reconciler().secrets;
    harness.apply(secrets, secret(&Key::new("other", "s"), Some("*"), "p", 5));
    let landlords = Store::<Custom<Landlord>>::new(&[None], Owners::default());
    let (in_other, without) = (Key::new("other", "s"), Key::cluster("s"));
    for (error, words) in [
        (
            cx.view().require(secrets, &in_other).err(),
            "Secret other/s is not in the namespace n",
        ),
        (
            cx.view().require(secrets, &without).err(),
            "Secret s: the reference has no namespace",
        ),
        (
            cx.view().require(&landlords, &key.sibling("s")).err(),
            "Landlord n/s: objects of this kind have no namespace",
        ),
    ] {
        assert_eq!(error, Some(ApiError::InvalidSpec(words.to_owned())));
    }
}

/// A cluster-scoped object may require an object of any watched namespace. An object of another one could appear unnoticed.
#[tokio::test]
async fn a_requirement_in_an_unwatched_namespace_fails() {
    let harness = landlords();
    let seen = Store::<Custom<Landlord>>::new(&[None], Owners::default());
    let (key, seen) = seen.snapshot(primary(None, &json!({ "name": "s" }), 1));
    let cx = harness.context(&key, &seen);
    let secrets = secrets_in(
        &["n", "other"].map(|name| Some(name.to_owned())),
        "example.com",
    );
    let required = |namespace: &str| {
        let required = cx.view().require(&secrets, &Key::new(namespace, "s"));
        required.map(drop).unwrap_err()
    };
    assert_eq!(required("m"), ApiError::NotWatched("m".to_owned()));
    let missing = ApiError::Waiting("no Secret \"s\"".to_owned());
    assert_eq!(required("other"), missing);
}

/// A change of the world of the property below.
#[derive(Clone, Debug)]
enum Move {
    /// Creates or changes a Secret, with or without a grant, and with a content of its own.
    Put(usize, Option<&'static str>),
    Delete(usize),
    /// Changes the reference of the Tenant.
    Refer(usize),
}

/// The Secrets of the property. The Tenant is in `n`.
fn target(number: usize) -> Key {
    let targets = [("n", "s"), ("other", "s"), ("other", "t"), ("third", "s")];
    Key::new(targets[number].0, targets[number].1)
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let grants = [
        None,
        None,
        Some(""),
        Some("n"),
        Some("m"),
        Some("m, n"),
        Some("*"),
        Some("nn"),
    ];
    let put = (0..4_usize, prop::sample::select(grants.to_vec()));
    let one = prop_oneof![
        4 => put.prop_map(|(number, grant)| Move::Put(number, grant)),
        1 => (0..4_usize).prop_map(Move::Delete),
        2 => (0..4_usize).prop_map(Move::Refer),
    ];
    prop::collection::vec(one, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// At any time, the plan sees the content of the referenced object if and only if the store has it with a grant. The
    /// readers of the status learn nothing else.
    #[test]
    fn a_plan_sees_no_content_without_a_grant(moves in moves()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let harness = tenants();
        let secrets = &harness.reconciler().secrets;
        let mut world = BTreeMap::<Key, (Option<&str>, String)>::new();
        let mut to = target(0);
        for (step, one) in moves.into_iter().enumerate() {
            let version = 10 + step as u64;
            match one {
                Move::Put(number, grant) => {
                    let (key, password) = (target(number), format!("password-{step}"));
                    harness.apply(secrets, secret(&key, grant, &password, version));
                    world.insert(key, (grant, password));
                }
                Move::Delete(number) => {
                    harness.delete(secrets, &secret(&target(number), None, "", version));
                    world.remove(&target(number));
                }
                Move::Refer(number) => to = target(number),
            }
            let reference = json!({ "name": to.name(), "namespace": to.namespace() });
            let found = read(&harness, secrets, Some("n"), &reference);
            let is_granted = |grant: Option<&str>| matches!(grant, Some("n" | "m, n" | "*"));
            let expected = world.get(&to).filter(|(grant, _)| to.namespace() == "n" || is_granted(*grant));
            match (found, expected) {
                (Ok(found), Some((_, password))) => prop_assert_eq!(&found, password),
                (Err(ApiError::NotGranted(words)), None) => {
                    prop_assert!(to.namespace() != "n");
                    let is_told = |(_, password): &(Option<&str>, String)| words.contains(password);
                    prop_assert!(!world.values().any(is_told), "{}", words);
                }
                (Err(ApiError::Waiting(_)), None) => prop_assert_eq!(to.namespace(), "n"),
                (found, expected) => prop_assert!(false, "{found:?} {expected:?}"),
            }
        }
    }
}

/// A unit test of a reconciler shows the effect of a grant.
#[tokio::test]
async fn a_plan_follows_the_grant() {
    let harness = tenants();
    let secrets = &harness.reconciler().secrets;
    let (tenant, key) = (Key::new("n", "a"), Key::new("other", "s"));
    let to = json!({ "name": "s", "namespace": "other" });
    let primaries = harness.reconciler().primaries.store();
    harness.apply(primaries, primary(Some("n"), &to, 1));
    let error = || match harness.plan(&tenant) {
        Err(error) => error.to_string(),
        Ok(steps) => format!("{steps:?}"),
    };
    let denied = error();
    harness.apply(secrets, secret(&key, None, "p", 5));
    assert_eq!(error(), denied);
    // The pace of the writes after a dispute does not depend on it, either.
    let seen = primaries.get(&tenant).unwrap();
    let inputs = || harness.context(&tenant, &seen).inputs;
    let before = inputs();
    harness.apply(secrets, secret(&key, None, "q", 6));
    assert_eq!(inputs(), before);
    harness.apply(secrets, secret(&key, Some("n"), "p", 7));
    assert_ne!((error(), inputs()), (denied.clone(), before));
    harness.apply(secrets, secret(&key, Some("m"), "p", 8));
    assert_eq!(error(), denied);
}

/// A cluster-scoped object has no namespace with a sibling.
#[test]
fn a_cluster_scoped_object_has_no_sibling() {
    for (key, is_refused) in [(Key::cluster("a"), true), (Key::new("n", "a"), false)] {
        let refer = || References::none(&key).sibling::<Dependent<Data>>("s");
        assert_eq!(
            std::panic::catch_unwind(refer).is_err(),
            is_refused,
            "{key}"
        );
    }
}

#[test]
fn the_namespace_of_a_reference_is_optional() {
    let from = Key::new("n", "a");
    for (json, key, text) in [
        (json!({ "name": "s" }), Key::new("n", "s"), "s"),
        (
            json!({ "name": "s", "namespace": "other" }),
            Key::new("other", "s"),
            "other/s",
        ),
    ] {
        let reference: ObjectRef = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(reference.key(&from), Some(key));
        assert_eq!(serde_json::to_value(&reference).unwrap(), json);
        assert_eq!(reference.to_string(), text);
    }
    let nowhere: ObjectRef = serde_json::from_value(json!({ "name": "s" })).unwrap();
    assert_eq!(nowhere.key(&Key::cluster("a")), None);
}
