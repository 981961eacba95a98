#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
use super::*;
use crate::{
    config::app::tests::{APP, HOLDER_KEY},
    election::fake::{FakeApi, Mood},
};
use futures::FutureExt as _;
use http::{Method, Request};
use kube::client::Body;
use std::sync::Arc;
use tower::{ServiceExt as _, service_fn};

fn held_by(api: &FakeApi, name: &str) {
    api.put(&json!({"holderIdentity": format!("{name}_1"), "leaseDurationSeconds": 15}));
}

fn settings() -> LeaderElection {
    LeaderElection {
        lease_name: "l".to_owned(),
        ..crate::config::settings::Config::shipped(&APP).leader_election
    }
}

fn record_of(api: &FakeApi, name: &str) -> FencingRecord {
    let client = Client::new(api.service(), "n");
    FencingRecord::new(
        &APP,
        &client,
        "n",
        &settings(),
        &Identity::new(name, "1").unwrap(),
    )
}

/// Returns the record for this replica. `happens` runs just before each of its requests with this method arrives.
fn with(
    api: &FakeApi,
    name: &str,
    method: Method,
    happens: impl Fn(&FakeApi) + Send + Sync + 'static,
) -> FencingRecord {
    let (api, happens) = (api.clone(), Arc::new(happens));
    let service = service_fn(move |request: Request<Body>| {
        if request.method() == method {
            happens(&api);
        }
        api.service().oneshot(request).boxed()
    });
    let client = Client::new(service, "n");
    FencingRecord::new(
        &APP,
        &client,
        "n",
        &settings(),
        &Identity::new(name, "1").unwrap(),
    )
}

#[tokio::test]
async fn a_record_is_written_once_a_term() {
    let api = FakeApi::new();
    held_by(&api, "a");
    api.put_record(Some(json!({})));
    let a = record_of(&api, "a");
    for (term, requests) in [("u1/1/1", 3), ("u1/1/1", 1), ("u1/2/2", 3), ("u2/2/3", 3)] {
        let asserted = a.assert(term).await;
        assert!(matches!(
            (asserted, requests),
            (Ok(WriteOutcome::Named), 1) | (Ok(WriteOutcome::Written), 3)
        ));
        assert_eq!(api.recorded(), "a_1");
        assert_eq!(api.requests().len(), requests, "{term:?}");
    }
}

#[tokio::test]
async fn a_missing_fencing_component_costs_one_request() {
    let api = FakeApi::new();
    held_by(&api, "a");
    let a = record_of(&api, "a");
    for mood in [Mood::Serves, Mood::Fails(403)] {
        api.mood(mood);
        let asserted = a.assert("u1/1/1").await;
        assert!(
            matches!(asserted, Ok(WriteOutcome::NotInstalled(_))),
            "{asserted:?}"
        );
        assert_eq!(api.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_standby_writes_no_fencing_record() {
    let api = FakeApi::new();
    held_by(&api, "b");
    api.put_record(Some(json!({HOLDER_KEY: "b_1"})));
    let asserted = record_of(&api, "a").assert("u1/1/1").await;
    assert!(matches!(asserted, Ok(WriteOutcome::Deposed(holder)) if holder == "b_1"));
    assert_eq!(api.recorded(), "b_1");
}

/// This applies to any record that it has read, and to any delay of its write.
#[tokio::test]
async fn i1_a_late_write_does_not_bring_a_deposed_leader_back() {
    let api = FakeApi::new();
    held_by(&api, "a");
    api.put_record(Some(json!({HOLDER_KEY: "c_1"})));
    let a = with(&api, "a", Method::PATCH, |api| {
        held_by(api, "b");
        api.put_record(Some(json!({HOLDER_KEY: "b_1"})));
    });
    assert!(is(&a.assert("u1/1/1").await.unwrap_err(), &[409]));
    assert_eq!(api.recorded(), "b_1");
    let asserted = a.assert("u1/1/1").await;
    assert!(matches!(asserted, Ok(WriteOutcome::Deposed(holder)) if holder == "b_1"));
    assert_eq!(api.recorded(), "b_1");
}

/// A deleted or cleared Lease deposes no leader.
#[tokio::test]
async fn a_lease_without_a_holder_deposes_no_leader() {
    for is_there in [true, false] {
        let api = FakeApi::new();
        if is_there {
            api.put(&json!({"holderIdentity": ""}));
        }
        api.put_record(Some(json!({})));
        let asserted = record_of(&api, "a").assert("u1/1/1").await;
        assert!(matches!(asserted, Ok(WriteOutcome::Unheld)), "{asserted:?}");
        assert_eq!(api.recorded(), "");
    }
}

/// If the record keeps changing, the assertion is abandoned until the next one.
#[tokio::test]
async fn repeated_conflicts_end_the_assertion() {
    let api = FakeApi::new();
    held_by(&api, "a");
    api.put_record(Some(json!({})));
    let a = with(&api, "a", Method::PATCH, |api| {
        api.put_record(Some(json!({})));
    });
    assert!(is(&a.assert("u1/1/1").await.unwrap_err(), &[409]));
    assert_eq!(api.requests().len(), 3);
}

fn assertions(api: &FakeApi) -> FencingRecordWriter {
    let second = Duration::from_secs(1);
    FencingRecordWriter::new(Host::for_tests([]), record_of(api, "a"), second, second)
}

/// This includes a term with the numbers of an earlier one, after the transitions were reset, and a restarted container.
/// Otherwise a leader in between could restore its own record with a late write.
#[tokio::test(start_paused = true)]
async fn i8_each_term_has_its_own_record() {
    let api = FakeApi::new();
    held_by(&api, "a");
    api.put_record(Some(json!({})));
    let mut processes = [assertions(&api), assertions(&api)];
    for process in [0, 1, 0] {
        let its = &mut processes[process];
        tokio::time::advance(Duration::from_secs(1)).await;
        its.acquired("u1", 1);
        assert_eq!(its.is(), FencingRecordState::Pending);
        assert_eq!(its.ended().await, None);
        assert_eq!(its.is(), FencingRecordState::Written);
        assert_eq!(api.requests().len(), 3);
        // During the term, the record is not read again.
        its.assert_if_due();
        assert!(!its.is_under_way());
    }
}

/// A replica that loses and regains its term faster than the API server responds still writes its record. A replica that gains
/// another term does not wait for the assertion in progress.
#[tokio::test(start_paused = true)]
async fn a_record_is_written_after_a_term_is_regained_or_replaced() {
    for (transitions, requests) in [(1, 6), (2, 3)] {
        let api = FakeApi::new();
        held_by(&api, "a");
        api.put_record(Some(json!({})));
        let mut its = assertions(&api);
        its.acquired("u1", 1);
        its.acquired("u1", transitions);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(its.ended().await, None);
        assert_eq!(its.is(), FencingRecordState::Written);
        assert_eq!(api.requests().len(), requests);
    }
}

/// A long pause does not cause the first write of a term to be rejected.
#[tokio::test(start_paused = true)]
async fn a_new_term_does_not_wait_for_the_pause_of_a_lapsed_one() {
    let api = FakeApi::new();
    api.mood(Mood::Fails(500));
    let mut its = assertions(&api);
    its.acquired("u1", 1);
    for _ in 0..5 {
        assert_eq!(its.ended().await, None);
        its.assert_if_due();
        assert!(!its.is_under_way());
        its.acquired("u1", 1);
        assert!(its.is_under_way());
    }
}

/// Returns the policy's message about a write of `caller`.
fn rejection(caller: &str, record: &str) -> String {
    format!(
        "ValidatingAdmissionPolicy 'x-fencing' with binding 'x-fencing' denied request: \"{caller}\" is not the leader named by \
         serviceaccount/{record}: none"
    )
}

/// The policy's message names the record only after a rejection of this replica, and only in the namespace of the Lease. The
/// settings take precedence.
#[tokio::test]
async fn a_record_is_taken_from_the_policy_under_conditions() {
    let policy = include_str!("../../cmd/fencing_policy.yaml");
    assert!(policy.contains("'\"' + variables.caller + '\" is not the leader named by serviceaccount/' + params.metadata.name + ' in ' +"));
    let api = FakeApi::new();
    let mut a = record_of(&api, "a");
    for (caller, record, expected) in [
        ("a_1", "web-fencing in n", Some("web-fencing")),
        ("b_1", "web-fencing in n", None),
        ("a_1", "web-fencing in other", None),
        ("a_1", "Web/fencing in n", None),
        ("a_1", "web-fencing", None),
    ] {
        let message = rejection(caller, record);
        assert_eq!(a.named_by(&message), expected, "{message}");
    }
    assert_eq!(a.named_by("the caller's token is not bound to a pod"), None);
    a.is_expected = true;
    assert_eq!(a.named_by(&rejection("a_1", "web-fencing in n")), None);
}

/// Two installations share a service account, and only the first has a record. The second must not use this record.
#[tokio::test(start_paused = true)]
async fn the_record_of_another_lease_is_not_taken_over() {
    let term_key = HOLDER_KEY.replace(HOLDER, TERM);
    for (written, taken) in [("u1/7/x", true), ("u2/1/x", false)] {
        let api = FakeApi::new();
        held_by(&api, "a");
        let annotations = json!({HOLDER_KEY: "b_1", (&*term_key): written});
        api.put_record_named("web-fencing", Some(annotations));
        let mut its = assertions(&api);
        its.acquired("u1", 1);
        assert_eq!(its.ended().await, None);
        its.rejected(&rejection("a_1", "web-fencing in n"));
        its.assert_if_due();
        assert_eq!(its.ended().await, None);
        assert_eq!(api.recorded(), if taken { "a_1" } else { "b_1" });
        assert_eq!(its.is() == FencingRecordState::Written, taken);
    }
}
