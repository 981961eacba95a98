//! Leader election against a real API server. A proxy in between causes each hazard.
//!
//! Most hazard tests run twice: with the lease guard, where the hazard is harmless, and with the bare crate, where it must
//! cause harm. Otherwise the test would prove nothing.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    client::ClientBuilder,
};
use kube_leader_election::{Error, LeaseLock, LeaseLockParams, LeaseLockResult};
use operator_runtime::{Host, internals::LeaseGuardLayer};
use operator_testkit::{
    cluster::{eventually, shared},
    proxy::{Answer, At, Held, Proxy},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};

const DEADLINE: Duration = Duration::from_secs(20);
const CALL: Duration = Duration::from_secs(5);
/// Lease duration short enough for a test to wait for.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(15);

/// A namespace with the Lease `l`.
struct Arena {
    namespace: String,
    leases: Api<Lease>,
    config: kube::Config,
}

impl Arena {
    async fn new() -> Self {
        let namespace = shared().namespace("election").await;
        let config = shared().kube_config().await;
        let leases = Api::namespaced(shared().client().await, &namespace);
        Self {
            namespace,
            leases,
            config,
        }
    }

    async fn put(&self, spec: Value) {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": spec});
        let lease = serde_json::from_value(lease).unwrap();
        self.leases
            .create(&PostParams::default(), &lease)
            .await
            .unwrap();
    }

    /// Writes a Lease that is free.
    async fn released(&self) {
        self.put(spec("", SHORT, Duration::from_mins(1))).await;
    }

    async fn delete(&self) {
        let params = DeleteParams::default();
        self.leases.delete("l", &params).await.unwrap();
    }

    async fn holder(&self) -> String {
        let spec = self.leases.get("l").await.unwrap().spec.unwrap();
        spec.holder_identity.unwrap_or_default()
    }

    async fn candidate(&self, name: &str, ttl: Duration, guard: bool) -> Candidate {
        let proxy = Proxy::start(self.config.clone()).await;
        let mut config = proxy.config(&self.config);
        config.default_retry = false;
        let builder = ClientBuilder::try_from(config).unwrap();
        let client = if guard {
            builder
                .with_layer(&LeaseGuardLayer::new(Host::of_this_process(), CALL, ttl))
                .build()
        } else {
            builder.build()
        };
        let params = LeaseLockParams {
            lease_name: "l".into(),
            holder_id: name.into(),
            lease_ttl: ttl,
        };
        let lock = Arc::new(LeaseLock::new(client.clone(), &self.namespace, params));
        let leases = Api::namespaced(client, &self.namespace);
        Candidate {
            proxy,
            lock,
            leases,
        }
    }
}

/// Spec of a Lease whose holder renewed it `ago` by its own clock.
fn spec(holder: &str, duration: Duration, ago: Duration) -> Value {
    let renewed = format!("{:.6}", Timestamp::now() - ago);
    json!({
        "holderIdentity": holder, "leaseDurationSeconds": duration.as_secs(), "leaseTransitions": 3,
        "acquireTime": renewed, "renewTime": renewed,
    })
}

struct Candidate {
    proxy: Proxy,
    lock: Arc<LeaseLock>,
    leases: Api<Lease>,
}

type Tried = Result<LeaseLockResult, Error>;

impl Candidate {
    /// Makes one attempt. Returns whether the crate reports leadership.
    async fn tries(&self) -> bool {
        acquired(&self.lock.try_acquire_or_renew().await)
    }

    /// Retries until this candidate holds the Lease.
    async fn acquires(&self) {
        eventually(DEADLINE, "the lease is acquired", async || {
            let tried = self.lock.try_acquire_or_renew().await;
            if acquired(&tried) { Ok(()) } else { Err(tried) }
        })
        .await;
    }

    /// Starts an attempt. The proxy holds its write before the API server.
    async fn tries_slowly(&self) -> (JoinHandle<Tried>, Held) {
        self.slowly("patch").await
    }

    async fn slowly(&self, verb: &'static str) -> (JoinHandle<Tried>, Held) {
        let mut held = self.proxy.on(verb, "leases").hold(At::Server);
        let lock = self.lock.clone();
        let tried = tokio::spawn(async move { lock.try_acquire_or_renew().await });
        held.arrived().await;
        (tried, held)
    }
}

/// Returns whether the response names a holder. The crate also reports a Lease that it has just created as acquired, even
/// without a holder.
fn acquired(tried: &Tried) -> bool {
    let Ok(LeaseLockResult::Acquired(lease)) = tried else {
        return false;
    };
    let spec = lease.spec.as_ref().unwrap();
    spec.holder_identity
        .as_deref()
        .is_some_and(|holder| !holder.is_empty())
}

#[tokio::test]
async fn h1_one_of_two_replicas_takes_a_free_lease() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        arena.released().await;
        let (a, b) = (
            arena.candidate("a", LONG, guard).await,
            arena.candidate("b", LONG, guard).await,
        );
        let ((a, first), (b, second)) = (a.tries_slowly().await, b.tries_slowly().await);
        first.pass().await;
        second.pass().await;
        assert!(acquired(&a.await.unwrap()));
        assert_eq!(acquired(&b.await.unwrap()), !guard, "guard: {guard}");
        assert_eq!(arena.holder().await == "a", guard, "guard: {guard}");
    }
}

#[tokio::test]
async fn h2_a_renewal_after_a_takeover_fails() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        arena.put(spec("a", SHORT, Duration::from_mins(1))).await;
        let (a, b) = (
            arena.candidate("a", SHORT, guard).await,
            arena.candidate("b", SHORT, guard).await,
        );
        let (renewed, late) = a.tries_slowly().await;
        b.acquires().await;
        late.pass().await;
        assert_eq!(acquired(&renewed.await.unwrap()), !guard, "guard: {guard}");
        assert_eq!(arena.holder().await, "b");
    }
}

#[tokio::test]
async fn h3_a_late_renewal_does_not_age_the_lease_of_another_replica() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        arena.put(spec("a", SHORT, Duration::from_mins(1))).await;
        let candidates = [
            arena.candidate("a", SHORT, guard).await,
            arena.candidate("b", SHORT, guard).await,
            arena.candidate("c", SHORT, guard).await,
        ];
        let [a, b, c] = &candidates;
        let (_, late) = a.tries_slowly().await;
        b.acquires().await;
        // Until the renewal of `a` is older than the lease duration.
        for _ in 0..8 {
            tokio::time::sleep(SHORT / 4).await;
            assert!(b.tries().await);
        }
        let before = arena.leases.get("l").await.unwrap();
        late.pass().await;
        let after = arena.leases.get("l").await.unwrap();
        assert_eq!(before == after, guard, "guard: {guard}");
        assert_eq!(c.tries().await, !guard, "b is alive; guard: {guard}");
    }
}

#[tokio::test]
async fn h3_kube_retries_a_renewal_by_default() {
    // The remedy is the flag `default_retry`, which the runtime always clears: see tests/leadership/takeover.rs.
    let arena = Arena::new().await;
    let proxy = Proxy::start(arena.config.clone()).await;
    proxy.on("*", "*").answer(Answer::json(503, ""));
    for retry in [false, true] {
        let mut config = proxy.config(&arena.config);
        config.default_retry = retry;
        let leases: Api<Lease> =
            Api::namespaced(Client::try_from(config).unwrap(), &arena.namespace);
        proxy.requests();
        let _ = timeout(Duration::from_secs(3), leases.get("l")).await;
        assert_eq!(proxy.requests().len() > 1, retry, "retry: {retry}");
    }
}

#[tokio::test]
async fn h4_a_release_after_a_takeover_leaves_the_holder_alone() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        arena.put(spec("a", SHORT, Duration::from_mins(1))).await;
        let (a, b) = (
            arena.candidate("a", SHORT, guard).await,
            arena.candidate("b", SHORT, guard).await,
        );
        let mut held = a.proxy.on("patch", "leases").hold(At::Server);
        let lock = a.lock.clone();
        let released = tokio::spawn(async move { lock.step_down().await });
        held.arrived().await;
        b.acquires().await;
        held.pass().await;
        assert_eq!(released.await.unwrap().is_ok(), !guard, "guard: {guard}");
        assert_eq!(arena.holder().await, if guard { "b" } else { "" });
    }
}

#[tokio::test]
async fn h5_a_dead_holder_with_a_fast_clock_is_replaced() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        let mut fast = spec("dead", SHORT, Duration::ZERO);
        fast["renewTime"] = json!("2999-01-01T00:00:00.000000Z");
        arena.put(fast).await;
        let b = arena.candidate("b", SHORT, guard).await;
        assert!(!b.tries().await, "at first sight");
        tokio::time::sleep(SHORT + Duration::from_millis(50)).await;
        assert_eq!(b.tries().await, guard, "guard: {guard}");
    }
}

#[tokio::test]
async fn h5_a_live_holder_with_a_slow_clock_is_left_alone() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        arena.put(spec("slow", LONG, Duration::from_hours(1))).await;
        let b = arena.candidate("b", LONG, guard).await;
        assert_eq!(b.tries().await, !guard, "guard: {guard}");
    }
}

#[tokio::test]
async fn h6_a_call_without_a_response_ends() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        arena.released().await;
        let a = arena.candidate("a", LONG, guard).await;
        assert!(a.tries().await);
        a.proxy.stall();
        let ended = timeout(CALL * 2, a.tries()).await;
        assert_eq!(ended == Ok(false), guard, "guard: {guard}");
    }
}

#[tokio::test]
async fn h7_a_lease_with_holes_can_be_taken() {
    let renewed = spec("x", LONG, Duration::from_mins(1))["renewTime"].clone();
    for spec in [
        json!({}),
        json!({"holderIdentity": null, "leaseDurationSeconds": 15, "renewTime": renewed}),
        json!({"holderIdentity": ""}),
        json!({"holderIdentity": "x", "leaseDurationSeconds": 1}),
        json!({"holderIdentity": "x", "leaseDurationSeconds": 1, "renewTime": renewed}),
    ] {
        let arena = Arena::new().await;
        arena.put(spec.clone()).await;
        assert!(
            arena
                .candidate("b", LONG, false)
                .await
                .lock
                .try_acquire_or_renew()
                .await
                .is_err(),
            "{spec}"
        );
        arena.candidate("b", SHORT, true).await.acquires().await;
        assert_eq!(arena.holder().await, "b", "{spec}");
    }
}

#[tokio::test]
async fn h8_a_lease_duration_below_a_second_is_rejected() {
    let arena = Arena::new().await;
    let error = arena
        .candidate("a", Duration::from_millis(900), false)
        .await
        .lock
        .try_acquire_or_renew()
        .await;
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("leaseDurationSeconds"),
        "or the check is needless"
    );
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_foo-controller"))
        .args(["config", "--lease-duration", "900ms"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("lease") && said.contains("900ms"), "{said}");
}

#[tokio::test]
async fn h9_an_identity_fits() {
    use operator_runtime::internals::Identity;
    let arena = Arena::new().await;
    arena.released().await;
    let (pod, uid) = ("p".repeat(253), "0b9b2f1c-7d6e-4c0a-9a3e-0d4c5b6a7f80");
    let raw = arena.candidate(&format!("{pod}_{uid}"), LONG, true).await;
    assert!(!raw.tries().await, "or the check is needless");
    let identity = Identity::new(&pod, uid).unwrap();
    let checked = arena.candidate(identity.as_str(), LONG, true).await;
    assert!(checked.tries().await && checked.tries().await);
}

#[tokio::test]
async fn h10_one_of_two_replicas_creates_the_lease_without_a_holder() {
    // The API server prevents two creations. For the loop, the conflict is a failed attempt.
    let arena = Arena::new().await;
    let (a, b) = (
        arena.candidate("a", SHORT, true).await,
        arena.candidate("b", LONG, true).await,
    );
    let ((first, pass_first), (second, pass_second)) =
        (a.slowly("create").await, b.slowly("create").await);
    assert_eq!(pass_first.pass().await, 201);
    assert_eq!(pass_second.pass().await, 409);
    assert!(!acquired(&first.await.unwrap()));
    assert!(second.await.unwrap().is_err());
    assert_eq!(arena.holder().await, "");
    assert!(!a.tries().await && !b.tries().await);
    tokio::time::sleep(SHORT).await;
    assert!(a.tries().await && !b.tries().await);
}

#[tokio::test]
async fn h11_a_renewal_that_changes_nothing_is_a_failure() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        arena.put(spec("a", LONG, Duration::ZERO)).await;
        let a = arena.candidate("a", LONG, guard).await;
        a.leases.get("l").await.unwrap();
        // Like a renewal by a stopped clock. The guard would date its own renewals by the host's clock, which runs here.
        let patch = Patch::Merge(json!({"spec": {"holderIdentity": "a"}}));
        let renewed = a.leases.patch("l", &PatchParams::default(), &patch).await;
        assert_eq!(renewed.is_ok(), !guard, "guard: {guard}");
    }
}

#[tokio::test]
async fn h12_a_late_renewal_of_a_recreated_lease_fails() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        arena.released().await;
        let (a, b) = (
            arena.candidate("a", SHORT, guard).await,
            arena.candidate("b", SHORT, guard).await,
        );
        assert!(a.tries().await);
        let (renewed, late) = a.tries_slowly().await;
        arena.delete().await;
        b.acquires().await;
        late.pass().await;
        assert_eq!(acquired(&renewed.await.unwrap()), !guard, "guard: {guard}");
        assert_eq!(arena.holder().await, "b");
    }
}

/// When `b` reads the Lease for the first time, it cannot know whether the previous term has ended.
#[tokio::test]
async fn h12_new_replica_waits_before_taking_a_deleted_lease() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        arena.released().await;
        let a = arena.candidate("a", SHORT, guard).await;
        assert!(a.tries().await);
        arena.delete().await;
        let b = arena.candidate("b", SHORT, guard).await;
        assert_eq!(b.tries().await, !guard, "guard: {guard}");
        assert_eq!(b.tries().await, !guard, "guard: {guard}");
        b.acquires().await;
    }
}

/// A creation has no precondition except that no Lease exists.
#[tokio::test]
async fn h12_a_late_creation_makes_no_replica_the_holder() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        let (a, b) = (
            arena.candidate("a", SHORT, guard).await,
            arena.candidate("b", SHORT, guard).await,
        );
        let (created, late) = a.slowly("create").await;
        b.acquires().await;
        // While `b` leads.
        arena.delete().await;
        assert_eq!(late.pass().await, 201);
        assert_eq!(acquired(&created.await.unwrap()), !guard);
        assert_eq!(arena.holder().await, if guard { "" } else { "a" });
    }
}

#[tokio::test]
async fn h15_a_lease_with_a_shortened_duration_is_left_to_its_holder() {
    for guard in [true, false] {
        let arena = Arena::new().await;
        arena.put(spec("a", LONG, Duration::ZERO)).await;
        let b = arena.candidate("b", SHORT, guard).await;
        assert!(!b.tries().await);
        let patch = Patch::Merge(json!({"spec": {"leaseDurationSeconds": 1}}));
        let params = PatchParams::default();
        arena.leases.patch("l", &params, &patch).await.unwrap();
        assert!(!b.tries().await || !guard);
        tokio::time::sleep(SHORT + Duration::from_millis(50)).await;
        assert_eq!(b.tries().await, !guard, "guard: {guard}");
    }
}

/// Extreme values that the API server accepts. A duration of decades is tested in the runtime with paused time; the wait for it
/// is capped at 1 h.
#[tokio::test]
async fn h16_a_lease_with_extreme_values_can_be_taken() {
    for (field, value) in [
        ("leaseTransitions", json!(i32::MAX)),
        ("renewTime", json!("9999-12-31T23:59:59.999999Z")),
        ("renewTime", json!("9999-12-30T22:00:00.000000Z")),
        ("acquireTime", json!("9999-12-31T23:59:59.999999Z")),
    ] {
        let arena = Arena::new().await;
        let mut spec = spec("", SHORT, Duration::from_mins(1));
        spec[field] = value;
        // A client that does not parse the Lease can write these values.
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "l", "namespace": arena.namespace}, "spec": spec,
        });
        let (create, lease) = (["create", "-f", "-"], lease.to_string());
        shared().kubectl_stdin(&create, &lease).await.success();
        let bare = arena.candidate("b", SHORT, false).await.lock;
        // In a task, because the crate may panic on an overflow.
        let bare = tokio::spawn(async move { bare.try_acquire_or_renew().await });
        let taken = bare.await.is_ok_and(|tried| acquired(&tried));
        assert!(!taken, "or the check is needless: {spec}");
        let b = arena.candidate("b", SHORT, true).await;
        b.acquires().await;
        assert!(b.tries().await, "{spec}");
        b.lock.step_down().await.unwrap();
    }
}
