use kube::Client;
use opentelemetry_sdk::Resource;
use serde_json::json;
use tokio::time::{advance, sleep};
use tower::BoxError;

use super::{
    namespace::{ControllerAccess, Permission},
    *,
};
use crate::{api::kind::Kind, config::app::tests::APP, testing::fixtures::logged};

const PARENT: Kind = Kind::custom("example.com", "v1", "Parent", "parents");

const GRACE: Duration = Duration::from_secs(15);

/// Indices of the watched resource types.
const PRIMARY: usize = 0;
const OWNED: usize = 1;
const UNCLES: usize = 2;

fn needs() -> RequiredAccess {
    let owned = Kind::custom("apps", "v1", "Deployment", "deployments");
    let right = |verb, kind, subresource| Permission {
        verb,
        kind,
        subresource,
    };
    RequiredAccess {
        controllers: vec![ControllerAccess {
            name: "parent",
            primary: &PARENT,
            watched: vec![PRIMARY, OWNED],
            rights: vec![
                right("create", owned, ""),
                right("patch", owned, ""),
                right("update", PARENT, "status"),
            ],
        }],
        watched: vec![PARENT, owned],
        optional: Vec::new(),
        unreviewed: Vec::new(),
    }
}

fn scopes(names: &[&str]) -> Arc<Scopes> {
    let names: Vec<_> = names.iter().map(|name| Some((*name).to_owned())).collect();
    let scopes = Scopes::new(needs(), &names, vec![Refusals::new(&names)], GRACE);
    tokio::spawn(Arc::clone(&scopes).supervise());
    scopes
}

/// Returns both watches of a scope after their initial lists.
fn synced(scopes: &Arc<Scopes>, scope: usize) -> [Status; 2] {
    [PRIMARY, OWNED].map(|informer| {
        let status = scopes.informer(scope, informer);
        status.synced();
        status
    })
}

fn missing() -> Permissions {
    Permissions::Missing(Problem {
        reason: Reason::Forbidden,
        text: "not allowed".to_owned(),
    })
}

async fn wait(time: Duration) {
    sleep(time).await;
    // Lets the supervisor run at the same instant.
    advance(Duration::from_millis(1)).await;
    tokio::task::yield_now().await;
}

/// A scope is in sync after both initial lists and the first permission check.
#[tokio::test(start_paused = true)]
async fn q5_each_scope_syncs_independently() {
    let scopes = scopes(&["a", "b"]);
    let [in_a, in_b] = ["a", "b"].map(|namespace| Key::new(namespace, "thing"));
    scopes.informer(1, PRIMARY).synced();
    scopes.informer(0, OWNED).synced();
    scopes.learn(0, 0, Some(Permissions::Sufficient), None);
    assert!(scopes.in_sync().borrow().is_empty());
    assert_eq!(
        scopes.failure().unwrap_or_default(),
        "not in sync yet: parents in namespace a; not in sync yet: deployments in namespace b"
    );
    synced(&scopes, 1);
    assert!(!scopes.is_in_sync(0, &in_b), "its rights are not known");
    scopes.learn(0, 1, None, None);
    assert!(scopes.is_in_sync(0, &in_b) && !scopes.is_in_sync(0, &in_a));
    assert_eq!(*scopes.ability().borrow(), Eligibility::Partial);
    assert!(
        scopes.failure().is_some(),
        "an initial sync is still going on"
    );
    synced(&scopes, 0);
    assert_eq!(*scopes.in_sync().borrow(), [(0, 1), (0, 0)]);
    assert_eq!(*scopes.ability().borrow(), Eligibility::Full);
    assert_eq!((scopes.failure(), scopes.note()), (None, None));
}

/// An optional type delays the initial sync until the first attempt to list it. Its failures are notes.
#[tokio::test(start_paused = true)]
async fn an_optional_type_is_no_part_of_the_readiness() {
    for (is_absent, text) in [(true, "not installed"), (false, "no rights")] {
        let mut needs = needs();
        needs.optional = vec![needs.watched[OWNED]];
        let scopes = Scopes::new(needs, &[None], vec![Refusals::new(&[None])], GRACE);
        tokio::spawn(Arc::clone(&scopes).supervise());
        scopes.informer(0, PRIMARY).synced();
        let check = &scopes.refusals[0].checks[0].called;
        assert_eq!(check.notified().now_or_never(), None);
        let syncing = "not in sync yet: deployments".to_owned();
        assert_eq!(scopes.failure(), Some(syncing));
        let optional = scopes.informer(0, OWNED);
        let fails = || {
            if is_absent {
                optional.is_absent(text.to_owned());
            } else {
                optional.fails(Reason::Forbidden, text.to_owned());
            }
        };
        fails();
        assert_eq!(check.notified().now_or_never(), Some(()));
        scopes.learn(0, 0, Some(Permissions::Sufficient), None);
        wait(10 * GRACE).await;
        assert_eq!(
            (scopes.failure(), scopes.note()),
            (None, Some(text.to_owned()))
        );
        assert_eq!(*scopes.ability().borrow(), Eligibility::Full);
        optional.synced();
        assert_eq!(scopes.note(), None);
        fails();
        wait(10 * GRACE).await;
        assert_eq!(*scopes.ability().borrow(), Eligibility::Full);
        assert_eq!(scopes.note(), Some(text.to_owned()));
    }
}

/// A scope that is forbidden from the start is reported. It neither delays nor stops other scopes.
#[tokio::test(start_paused = true)]
async fn a_scope_that_is_forbidden_stops_no_other() {
    let scopes = scopes(&["a", "b"]);
    synced(&scopes, 0);
    scopes.learn(0, 0, Some(Permissions::Sufficient), None);
    let b = scopes.informer(1, PRIMARY);
    b.fails(Reason::Forbidden, "no rights in b".to_owned());
    assert_eq!(*scopes.ability().borrow(), Eligibility::Partial);
    assert_eq!(scopes.failure(), None);
    let note = scopes.note().unwrap_or_default();
    assert_eq!(note, "not served: no rights in b");
}

/// Returns the scope of all namespaces for two controllers: Parents and Uncles, which both watch Deployments.
fn two_controllers() -> Arc<Scopes> {
    const UNCLE: Kind = Kind::custom("example.com", "v1", "Uncle", "uncles");
    let mut needs = needs();
    needs.watched.push(UNCLE);
    needs.controllers.push(ControllerAccess {
        name: "uncle",
        primary: &UNCLE,
        watched: vec![OWNED, UNCLES],
        rights: Vec::new(),
    });
    let refusals = (0..2).map(|_| Refusals::new(&[None])).collect();
    let scopes = Scopes::new(needs, &[None], refusals, GRACE);
    tokio::spawn(Arc::clone(&scopes).supervise());
    scopes
}

/// A resource type hinders the controllers that use it, and no other.
#[tokio::test(start_paused = true)]
async fn a_controller_depends_only_on_what_it_uses() {
    let scopes = two_controllers();
    let key = Key::new("a", "thing");
    let is_in_sync = || [0, 1].map(|controller| scopes.is_in_sync(controller, &key));
    let ability = || *scopes.ability().borrow();
    let [parents, owned] = synced(&scopes, 0);
    for controller in [0, 1] {
        scopes.learn(controller, 0, Some(Permissions::Sufficient), None);
    }
    assert_eq!(
        (is_in_sync(), ability()),
        ([true, false], Eligibility::Partial)
    );
    let syncing = "uncle: not in sync yet: uncles";
    assert_eq!(scopes.failure().as_deref(), Some(syncing));
    let uncles = scopes.informer(0, UNCLES);
    uncles.fails(Reason::NotFound, "no CRD of Uncles".to_owned());
    assert_eq!(scopes.failure(), None, "no list of Uncles is going on");
    let note = "not served: uncle: no CRD of Uncles";
    assert_eq!(scopes.note().as_deref(), Some(note));
    uncles.synced();
    assert_eq!((is_in_sync(), ability()), ([true, true], Eligibility::Full));

    let fails = |watch: &Status| watch.fails(Reason::Failing, "it fails".to_owned());
    for (watch, able) in [
        (&parents, Eligibility::Partial),
        (&uncles, Eligibility::Partial),
        (&owned, Eligibility::None),
    ] {
        fails(watch);
        wait(GRACE).await;
        assert_eq!(ability(), able);
        watch.works();
        assert_eq!(ability(), Eligibility::Full);
    }
    // A `Retry-After` extends the grace period of the controllers that use the type.
    fails(&parents);
    fails(&uncles);
    uncles.waits(GRACE * 3);
    wait(GRACE * 2).await;
    let note = "not served: parent: it fails";
    assert_eq!(scopes.note().as_deref(), Some(note));
    parents.works();
    uncles.works();
    scopes.learn(1, 0, Some(missing()), None);
    wait(GRACE).await;
    let note = "not served: uncle: not allowed";
    assert_eq!(scopes.note().as_deref(), Some(note));
    let before = [0, 1].map(|controller| scopes.rights_regained(controller, &key));
    scopes.learn(1, 0, Some(Permissions::Sufficient), Some("restored"));
    let after = [0, 1].map(|controller| scopes.rights_regained(controller, &key));
    assert_eq!(after, [before[0], before[1] + 1]);
    assert_eq!(ability(), Eligibility::Full);
}

const CLASSES: usize = 0;
const MAPS: usize = 1;
const PARENTS: usize = 2;

/// Returns the state of two namespaces. One controller reconciles cluster-scoped Classes, which own Maps. The other one
/// reconciles Parents, which read Classes.
fn with_classes() -> Arc<Scopes> {
    const CLASS: Kind = Kind::custom("example.com", "v1", "Class", "classes").cluster_scoped();
    let maps = Kind::custom("", "v1", "ConfigMap", "configmaps");
    let namespaces = ["a", "b"].map(|name| Some(name.to_owned()));
    let right = |verb, kind| Permission {
        verb,
        kind,
        subresource: "",
    };
    let needs = RequiredAccess {
        controllers: vec![
            ControllerAccess {
                name: "class",
                primary: &CLASS,
                watched: vec![CLASSES, MAPS],
                rights: vec![right("create", maps), right("patch", CLASS)],
            },
            ControllerAccess {
                name: "parent",
                primary: &PARENT,
                watched: vec![CLASSES, PARENTS],
                rights: vec![right("get", CLASS)],
            },
        ],
        watched: vec![CLASS, maps, PARENT],
        optional: Vec::new(),
        unreviewed: Vec::new(),
    };
    let refusals = [&CLASS, &PARENT].map(|kind| Refusals::new(&kind.scopes(&namespaces)));
    let scopes = Scopes::new(needs, &namespaces, refusals.into(), GRACE);
    tokio::spawn(Arc::clone(&scopes).supervise());
    scopes
}

/// A cluster-scoped type is watched once. Its objects wait for all namespaces, because their dependents may be in each of them.
/// A namespace without permissions stops them, and no controller of a namespaced type.
#[tokio::test(start_paused = true)]
async fn a_cluster_scoped_type_needs_all_namespaces() {
    let scopes = with_classes();
    let watches = [
        (CLASSES, 0),
        (MAPS, 0),
        (PARENTS, 0),
        (MAPS, 1),
        (PARENTS, 1),
    ];
    assert_eq!(scopes.informers(), watches);
    assert_eq!(scopes.cells(), [(0, 0), (1, 0), (1, 1)]);
    let (class, [in_a, in_b]) = (Key::cluster("c"), ["a", "b"].map(|it| Key::new(it, "p")));
    for (controller, cell) in scopes.cells() {
        scopes.learn(controller, cell, Some(Permissions::Sufficient), None);
    }
    for (informer, scope) in [(MAPS, 0), (PARENTS, 0), (PARENTS, 1)] {
        scopes.informer(scope, informer).synced();
    }
    let syncing = "class: not in sync yet: classes; configmaps in namespace b; parent: not in sync yet: classes";
    assert_eq!(scopes.failure().as_deref(), Some(syncing));
    let classes = scopes.informer(0, CLASSES);
    classes.synced();
    assert!(scopes.is_in_sync(1, &in_a) && scopes.is_in_sync(1, &in_b));
    assert!(!scopes.is_in_sync(0, &class), "Maps of b are not listed");
    let maps = scopes.informer(1, MAPS);
    maps.fails(Reason::Forbidden, "no rights in b".to_owned());
    assert_eq!(scopes.failure(), None, "Parents are served");
    let note = "not served: class: no rights in b";
    assert_eq!(scopes.note().as_deref(), Some(note));
    assert_eq!(*scopes.ability().borrow(), Eligibility::Partial);
    maps.synced();
    assert!(scopes.is_in_sync(0, &class));
    assert_eq!(*scopes.ability().borrow(), Eligibility::Full);
    classes.fails(Reason::Failing, "it fails".to_owned());
    wait(GRACE).await;
    assert_eq!(*scopes.ability().borrow(), Eligibility::None);
}

/// A permission for a cluster-scoped type is reviewed without a namespace, and one for a namespaced type in each namespace that
/// the cell needs.
#[tokio::test(start_paused = true)]
async fn permissions_are_reviewed_in_the_scope_of_their_type() {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let reviews = Arc::clone(&asked);
    let server = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let reviews = Arc::clone(&reviews);
        async move {
            let body = request.into_body().collect_bytes().await?;
            let review: serde_json::Value = serde_json::from_slice(&body)?;
            let wanted = &review["spec"]["resourceAttributes"];
            let [verb, plural, namespace] = ["verb", "resource", "namespace"]
                .map(|field| wanted[field].as_str().unwrap_or("-").to_owned());
            let is_allowed = (&*verb, &*namespace) != ("create", "b");
            reviews.lock().push(format!("{verb} {plural} {namespace}"));
            let review = json!({ "spec": {}, "status": { "allowed": is_allowed } });
            let body = kube::client::Body::from(serde_json::to_vec(&review)?);
            Ok::<_, BoxError>(http::Response::new(body))
        }
    });
    let scopes = with_classes();
    for (controller, cell) in scopes.cells() {
        let client = Client::new(server.clone(), "default");
        tokio::spawn(Arc::clone(&scopes).check_rights(controller, cell, client));
    }
    for (informer, scope) in scopes.informers() {
        scopes.informer(scope, informer).synced();
    }
    wait(Duration::from_millis(500)).await;
    let mut reviews = asked.lock().clone();
    reviews.sort();
    let expected = [
        "create configmaps a",
        "create configmaps b",
        "get classes -",
        "get classes -",
        "patch classes -",
    ];
    assert_eq!(reviews, expected);
    let note = scopes.note().unwrap_or_default();
    let text = "not served: class: not allowed to create configmaps in namespace b: ";
    assert!(note.starts_with(text), "{note}");
}

/// A rejected request for a cluster-scoped object may concern each cell, and any rejected request concerns the single cell of a
/// cluster-scoped type.
#[tokio::test(start_paused = true)]
async fn a_refusal_reaches_the_cells_that_it_may_concern() {
    let scopes = with_classes();
    let (of_class, of_parent) = (&scopes.refusals[0], &scopes.refusals[1]);
    for (refusals, key, expected) in [
        (of_parent, Key::cluster("c"), &[true, true][..]),
        (of_parent, Key::new("b", "p"), &[false, true]),
        (of_class, Key::new("b", "m"), &[true]),
        (of_class, Key::cluster("c"), &[true]),
    ] {
        refusals.refused(&key, false);
        let called = refusals.checks.iter();
        let called = called.map(|check| check.called.notified().now_or_never().is_some());
        assert_eq!(called.collect::<Vec<_>>(), expected, "{key}");
    }
}

/// The metric names the controller only if there are several: the series of other programs keep their labels.
#[tokio::test(start_paused = true)]
async fn the_metric_names_one_of_several_controllers() {
    for (scopes, labels) in [
        (scopes(&["a"]), vec![r#"{reason="syncing",scope="a"}"#]),
        (
            two_controllers(),
            vec![
                r#"{controller="parent",reason="syncing",scope="*"}"#,
                r#"{controller="uncle",reason="syncing",scope="*"}"#,
            ],
        ),
    ] {
        let (metrics, _provider) = Metrics::new(&APP, Resource::builder_empty().build(), None);
        scopes.observe(&metrics);
        let (_, page) = metrics.scrape(None);
        let lines = page.lines();
        let lines: Vec<_> = lines
            .filter_map(|line| line.strip_prefix("some_operator_scope_served"))
            .collect();
        let expected = labels.iter().map(|labels| format!("{labels} 0"));
        assert_eq!(lines, expected.collect::<Vec<_>>());
    }
}

/// A `Retry-After` extends the grace period once, even if several watches receive it.
#[tokio::test(start_paused = true)]
async fn q3h_retry_after_extends_the_grace_period() {
    let asked = GRACE * 3;
    let scopes = scopes(&["a"]);
    let watches = synced(&scopes, 0);
    scopes.learn(0, 0, Some(Permissions::Sufficient), None);
    for watch in &watches {
        watch.fails(Reason::Failing, "429".to_owned());
        watch.waits(asked);
    }
    wait(asked + GRACE.mul_f64(0.9)).await;
    assert_eq!(*scopes.ability().borrow(), Eligibility::Full);
    wait(GRACE.mul_f64(0.2)).await;
    assert_eq!(*scopes.ability().borrow(), Eligibility::None);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_dropped_after_the_grace_period_and_restored_immediately() {
    let scopes = scopes(&["a"]);
    let [parents, _] = synced(&scopes, 0);
    scopes.learn(0, 0, Some(Permissions::Sufficient), None);
    let ability = scopes.ability();
    let fails = || parents.fails(Reason::NotFound, "no CRD".to_owned());
    let lacks = || _ = scopes.learn(0, 0, Some(missing()), None);
    let works = || parents.works();
    let may = || _ = scopes.learn(0, 0, Some(Permissions::Sufficient), None);
    let losses: [[&dyn Fn(); 2]; 2] = [[&fails, &works], [&lacks, &may]];
    for [lost, again] in losses {
        lost();
        wait(GRACE.mul_f64(0.9)).await;
        again();
        lost();
        wait(GRACE.mul_f64(0.9)).await;
        assert_eq!(
            *ability.borrow(),
            Eligibility::Full,
            "it had come back meanwhile"
        );
        assert_eq!(scopes.failure(), None);
        wait(GRACE.mul_f64(0.2)).await;
        assert_eq!(*ability.borrow(), Eligibility::None);
        assert!(scopes.failure().is_some());
        again();
        assert_eq!(*ability.borrow(), Eligibility::Full);
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_without_write_permissions_at_start_is_not_served() {
    let scopes = scopes(&["a"]);
    synced(&scopes, 0);
    assert!(scopes.learn(0, 0, Some(missing()), None));
    assert_eq!(*scopes.ability().borrow(), Eligibility::None);
    assert!(scopes.learn(0, 0, None, None), "no answer changes nothing");
    assert!(!scopes.learn(0, 0, Some(Permissions::Sufficient), None));
    assert_eq!(*scopes.ability().borrow(), Eligibility::Full);
}

/// Permissions are checked a few times per minute, regardless of the number and cause of rejected writes.
#[tokio::test(start_paused = true)]
async fn permissions_are_reviewed_at_a_limited_rate() {
    let undecided =
        |denied| json!({ "allowed": false, "denied": denied, "evaluationError": "no answer" });
    for (status, allowed) in [
        (json!({ "allowed": true }), true),
        (json!({ "allowed": false }), false),
        // The authorizer that failed has not denied the request. Another may have.
        (undecided(false), true),
        (undecided(true), false),
    ] {
        let asked = Arc::new(Mutex::new(0));
        let count = Arc::clone(&asked);
        let server = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            *count.lock() += 1;
            let review = json!({ "spec": {}, "status": status });
            async move {
                let body = kube::client::Body::from(serde_json::to_vec(&review)?);
                Ok::<_, serde_json::Error>(http::Response::new(body))
            }
        });
        let scopes = scopes(&["a"]);
        let client = Client::new(server, "default");
        tokio::spawn(Arc::clone(&scopes).check_rights(0, 0, client));
        synced(&scopes, 0);
        let key = Key::new("a", "thing");
        let end = Instant::now() + Duration::from_mins(1);
        while Instant::now() < end {
            scopes.refusals[0].refused(&key, false);
            sleep(Duration::from_millis(10)).await;
        }
        let asked = *asked.lock();
        assert!((8..=36).contains(&asked), "{asked}");
        assert_eq!(
            *scopes.ability().borrow(),
            if allowed {
                Eligibility::Full
            } else {
                Eligibility::None
            }
        );
    }
}

/// A permission that was missing between two checks counts as restored, after the next successful review.
///
/// If writes are rejected in spite of positive reviews, or if reviews contradict each other, notifications become rarer. They
/// are frequent again after a while without a rejection.
#[tokio::test(start_paused = true)]
async fn r10f_rejection_counts_as_a_missing_permission() {
    const MINUTE: Duration = Duration::from_mins(1);
    #[derive(Clone, Copy, PartialEq)]
    enum Reviews {
        Allow,
        /// Allow after this number of reviews without a response.
        AllowAfter(u32),
        /// Deny every other check.
        Alternate,
    }
    let reviews = Arc::new(Mutex::new((Reviews::Allow, 0)));
    let says = Arc::clone(&reviews);
    let server = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        let mut says = says.lock();
        let (reviews, asked) = &mut *says;
        *asked += 1;
        let is_answered = !matches!(*reviews, Reviews::AllowAfter(silent) if *asked <= silent);
        // An allowed check takes three reviews. The next review is the first of a denied check.
        let allowed = *reviews != Reviews::Alternate || *asked % 4 != 0;
        async move {
            let review = json!({ "spec": {}, "status": { "allowed": allowed } });
            let body = kube::client::Body::from(serde_json::to_vec(&review)?);
            let answer = is_answered.then(|| http::Response::new(body));
            answer.ok_or_else(|| BoxError::from("no answer"))
        }
    });
    let scopes = scopes(&["a", "b"]);
    tokio::spawn(Arc::clone(&scopes).check_rights(0, 0, Client::new(server, "default")));
    synced(&scopes, 0);
    let key = Key::new("a", "thing");
    sleep(MINUTE).await;
    for (refused, for_want_of_rights, how, regained) in [
        (0, true, Reviews::Allow, 0..=0),
        (1, false, Reviews::Allow, 0..=0),
        (1, true, Reviews::Allow, 1..=1),
        (1, true, Reviews::AllowAfter(2), 1..=1),
        // Notifications after 0, 1, 3, 7, … 1023 s, then every 1000 s, the last one after the last rejection.
        (3600, true, Reviews::Allow, 14..=14),
        (1, true, Reviews::Allow, 1..=1),
        (3600, false, Reviews::Alternate, 8..=16),
        (3600, true, Reviews::Alternate, 8..=32),
        (1, true, Reviews::Allow, 1..=1),
    ] {
        let before = scopes.rights_regained(0, &key);
        let (log, _guard) = logged(tracing::Level::INFO);
        *reviews.lock() = (how, 0);
        for _ in 0..refused {
            scopes.refusals[0].refused(&key, for_want_of_rights);
            sleep(Duration::from_secs(1)).await;
        }
        reviews.lock().0 = match how {
            Reviews::Alternate => Reviews::Allow,
            other => other,
        };
        sleep(20 * MINUTE).await;
        let told = scopes.rights_regained(0, &key) - before;
        assert!(regained.contains(&told), "{refused}: {told}");
        // Without a missing permission in a review, none is known to be restored.
        let log = String::from_utf8_lossy(&log.lock()).into_owned();
        let is_logged = |text: &str| log.contains(&format!("{text}: retrying rejected writes"));
        assert_eq!(
            is_logged("permissions restored"),
            how == Reviews::Alternate,
            "{log}"
        );
        let is_unproven = told > 0 && how != Reviews::Alternate;
        assert!(
            !is_unproven || is_logged("no missing permission found"),
            "{log}"
        );
        let asked = reviews.lock().1;
        assert!(asked <= 3 * 30 + refused / 2, "{refused}: {asked} reviews");
    }
    assert_eq!(scopes.rights_regained(0, &Key::new("b", "thing")), 0);
}
