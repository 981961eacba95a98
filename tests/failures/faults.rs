//! An API server that dies, freezes or returns nonsense, and the requests of an idle controller. The controller and the API
//! server are real. The tests check the audit log.

use std::{collections::BTreeMap, time::Duration};

use foo_controller::api::Foo;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use operator_testkit::{
    cluster::{AuditEvent, Cluster, eventually},
    proxy::{Answer, At, On, Proxy, Rule},
};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::support::{
    controller::Controller,
    foos::{
        self, DEADLINE, audited, audited_alone, converged, counts, create, names, owned, requests,
        subject,
    },
};

/// Without changes, three resyncs of 500 Foos send no request.
#[tokio::test]
async fn q4_i6a_three_resyncs_of_500_foos_send_no_request() {
    const RESYNC: Duration = Duration::from_secs(2);
    let cluster = audited().await;
    let client = cluster.client().await;
    let namespace = cluster.namespace("rest").await;
    let names = names("foo", 500);
    create(&client, &namespace, &names).await;
    // With its own user, so that requests without a namespace are found as well.
    let replica = cluster.kubeconfig_of("replica-1");
    let _controller = Controller::start(
        cluster,
        &[
            "--kubeconfig",
            replica.to_str().unwrap(),
            "--namespace",
            &namespace,
            "--resync",
            &format!("{}s", RESYNC.as_secs()),
        ],
    );
    converged(&client, &namespace, &names).await;
    let asked = || {
        let mut events = cluster.audit();
        events.retain(|event| event.user == "replica-1");
        events
    };
    eventually(
        DEADLINE,
        "an event for each Foo",
        async || match foos::events(&client, &namespace, "Synced").await.len() {
            500 => Ok(()),
            count => Err(count),
        },
    )
    .await;
    let before = asked().len();
    sleep(3 * RESYNC).await;
    let after = asked();
    println!(
        "500 Foos from the start of the controller on: {:#?}",
        counts(&after)
    );
    assert_eq!(after.len(), before, "{:#?}", counts(&after[before..]));
}

/// A Foo that is created and scaled costs four writes and at most two events.
#[tokio::test]
async fn a_foos_life_costs_four_writes() {
    const FOOS: usize = 50;
    let cluster = audited().await;
    let client = cluster.client().await;
    let namespace = cluster.namespace("life").await;
    let _controller = Controller::start(cluster, &["--namespace", &namespace]);
    let names = names("foo", FOOS);
    create(&client, &namespace, &names).await;
    converged(&client, &namespace, &names).await;
    let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
    for name in &names {
        let two = json!({ "spec": { "replicas": 2 } });
        let patch = Patch::Merge(&two);
        foos.patch(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    converged(&client, &namespace, &names).await;
    eventually(DEADLINE, "the second event of each Foo", async || {
        let events = foos::events(&client, &namespace, "Synced").await;
        let twice = events.iter().filter(|e| {
            e.series
                .as_ref()
                .is_some_and(|series| series.count == Some(2))
        });
        match twice.count() {
            FOOS => Ok(()),
            count => Err(count),
        }
    })
    .await;
    let counts = counts(&requests(cluster, &namespace));
    println!("{FOOS} Foos created and scaled: {counts:#?}");
    let expected = [
        ("create deployments 201", FOOS),
        ("create events 201", FOOS),
        ("patch deployments 200", FOOS),
        ("patch events 200", FOOS),
        ("update foos/status 200", 2 * FOOS),
    ];
    let expected = expected.map(|(what, count)| (what.to_owned(), count));
    assert_eq!(counts, BTreeMap::from(expected));
}

/// While Foos wait for their Deployments, only every eighth turn is for a status. That turn keeps the statuses from starving.
#[tokio::test]
async fn r1_deployments_precede_statuses() {
    const FOOS: usize = 100;
    let cluster = audited().await;
    let client = cluster.client().await;
    let namespace = cluster.namespace("first").await;
    let names = names("foo", FOOS);
    create(&client, &namespace, &names).await;
    let args = ["--namespace", &namespace, "--workers", "4"];
    let _controller = Controller::start(cluster, &args);
    converged(&client, &namespace, &names).await;
    let requests = requests(cluster, &namespace);
    let is_create = |event: &&AuditEvent| event.verb == "create" && event.resource == "deployments";
    let mut left = requests.iter().filter(is_create).count();
    let mut early = 0;
    for event in &requests {
        left -= usize::from(is_create(&event));
        early += usize::from(left > 0 && event.subresource == "status");
    }
    println!("{early} statuses were reported before the last of {FOOS} Deployments was created");
    assert!(early <= FOOS / 4, "{:#?}", counts(&requests));
}

/// The API server dies while 200 Foos are created, and restarts. All converge, and no write is repeated.
#[tokio::test]
async fn two_hundred_foos_converge_after_the_api_server_is_killed() {
    amid_200_foos(async |cluster, controller| {
        cluster.kill_apiserver().await;
        controller.wait_for_log("cannot watch foos").await;
        controller.wait_for_log("cannot watch deployments").await;
        cluster.start_apiserver().await;
    })
    .await;
}

/// The API server freezes for 30 s while 200 Foos are created. All converge, and no write is repeated.
#[tokio::test]
async fn two_hundred_foos_converge_after_the_api_server_freezes() {
    amid_200_foos(async |cluster, _| {
        cluster.freeze_apiserver().await;
        sleep(Duration::from_secs(30)).await;
        cluster.thaw_apiserver().await;
    })
    .await;
}

/// The API server is frozen for a minute. The leader closes its fence at the renew deadline, before another replica could take
/// the Lease. Afterwards one replica leads, and the work continues.
#[tokio::test]
async fn h6_a_leader_fences_itself_while_the_api_server_is_frozen() {
    let cluster = audited_alone().await;
    let client = cluster.client().await;
    let namespace = cluster.namespace("fence").await;
    cluster.release_lease(&namespace, "foo-controller").await;
    let replica = || {
        let lease = ["--leader-election", "--lease-namespace", &namespace];
        let args = [&lease[..], &["--namespace", &namespace]].concat();
        Controller::start(&cluster, &args)
    };
    let leader = replica();
    leader.wait_for_log("gained the lease").await;
    let standby = replica();
    standby.wait_for_log("standing by").await;
    let before = names("before", 20);
    create(&client, &namespace, &before).await;
    converged(&client, &namespace, &before).await;

    let frozen = Instant::now();
    cluster.freeze_apiserver().await;
    leader.wait_for_log("lost the lease").await;
    let after = frozen.elapsed();
    println!("the leader shut its fence {after:?} after the freeze");
    assert!(
        after < Duration::from_secs(15),
        "longer than the lease: {after:?}"
    );
    sleep(Duration::from_mins(1).saturating_sub(frozen.elapsed())).await;
    let gained = || leader.logged("gained the lease") + standby.logged("gained the lease");
    assert_eq!(gained(), 1, "nobody leads meanwhile");

    cluster.thaw_apiserver().await;
    let later = names("later", 20);
    create(&client, &namespace, &later).await;
    converged(&client, &namespace, &later).await;
    assert_eq!(gained(), 2, "one of them leads again");
}

async fn amid_200_foos(outage: impl AsyncFn(&Cluster, &Controller)) {
    const FOOS: usize = 200;
    let cluster = audited_alone().await;
    let client = cluster.client().await;
    let namespace = cluster.namespace("outage").await;
    let controller = Controller::start(&cluster, &["--namespace", &namespace]);
    let names = names("foo", FOOS);
    let outage = async {
        let what = "some Deployments are there";
        eventually(DEADLINE, what, async || {
            let created = requests(&cluster, &namespace)
                .iter()
                .filter(|event| event.code == 201)
                .count();
            if created >= 40 { Ok(()) } else { Err(created) }
        })
        .await;
        outage(&cluster, &controller).await;
        println!("the outage is over");
    };
    tokio::join!(create(&client, &namespace, &names), outage);
    converged(&client, &namespace, &names).await;

    let requests = requests(&cluster, &namespace);
    println!("{:#?}", counts(&requests));
    let mut writes: BTreeMap<_, usize> = BTreeMap::new();
    for event in requests.iter().filter(|event| event.code < 300) {
        let what = (&*event.verb, &*event.resource, &*event.subresource);
        *writes.entry((what, subject(event))).or_default() += 1;
    }
    let amiss = writes.iter().filter(|((what, _), count)| match what {
        ("create", "deployments", "") | ("update", "foos", "status") => **count != 1,
        (_, "events", _) => false,
        _ => true,
    });
    assert_eq!(amiss.collect::<Vec<_>>(), Vec::new());
    let deployments: Api<Deployment> = Api::namespaced(client, &namespace);
    let deployments = deployments.list(&ListParams::default()).await.unwrap();
    assert_eq!(deployments.items.len(), FOOS);

    let log = controller.log();
    let mut causes: BTreeMap<&str, usize> = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains("resource=")) {
        let (_, cause) = line.split_once(" WARN ").unwrap_or_default();
        *causes.entry(cause).or_default() += 1;
    }
    causes.remove("");
    println!("said of the watches: {causes:#?}");
    println!("retries logged: {}", controller.logged("attempt="));
    assert!(causes.values().all(|count| *count == 1), "{causes:#?}");
}

/// Deletions during an outage of the watches are seen when the watches resume. A deleted Deployment is created again. The
/// Deployment of a deleted Foo is left to the garbage collector.
#[tokio::test]
async fn r10b_deletions_during_an_outage_of_the_watch_are_noticed() {
    let Setup {
        client,
        namespace,
        proxy,
        controller,
        ..
    } = Setup::new("down").await;
    create(&client, &namespace, &names("foo", 3)).await;
    converged(&client, &namespace, &names("foo", 3)).await;

    proxy.on("*", "*").cut(At::Server);
    proxy.disconnect();
    controller.wait_for_log("cannot watch foos").await;
    controller.wait_for_log("cannot watch deployments").await;
    let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let delete = DeleteParams::default();
    deployments.delete("foo-000", &delete).await.unwrap();
    foos.delete("foo-001", &delete).await.unwrap();
    proxy.clear();

    owned(&client, &namespace, "foo-000", "foo-000").await;
    create(&client, &namespace, &["later".to_owned()]).await;
    owned(&client, &namespace, "later", "later").await;
    let requests = requests(audited().await, &namespace);
    let of_the_deleted = requests
        .iter()
        .filter(|e| e.resource == "deployments" && subject(e) == "foo-001");
    assert_eq!(of_the_deleted.count(), 1, "its creation, once");
}

/// A watch cannot resume, because the CRD was deleted or a proxy has no API server. The log contains the status of the response,
/// not a parse error.
#[tokio::test]
async fn resumed_watch_reports_the_status() {
    for (code, text, words) in [
        (404, "404 page not found\n", "is not installed"),
        (502, "<html>no</html>", "the API server returned 502"),
    ] {
        let Setup {
            proxy, controller, ..
        } = Setup::new("status").await;
        controller.wait_for_log("started workers").await;
        proxy.on("watch", "foos").answer(Answer::json(code, text));
        proxy.disconnect();
        controller.wait_for_log(words).await;
    }
}

/// A load balancer resets idle watches. They resume from their resourceVersions, without a list or a log line.
#[tokio::test]
async fn idle_watches_that_are_reset_resume() {
    // A watch that ends within 5 s counts as failed.
    const IDLE: Duration = Duration::from_secs(7);
    let Setup {
        client,
        namespace,
        proxy,
        controller,
        ..
    } = Setup::new("idle").await;
    create(&client, &namespace, &names("foo", 3)).await;
    converged(&client, &namespace, &names("foo", 3)).await;
    for round in 0..2 {
        sleep(IDLE).await;
        let log = controller.log();
        proxy.requests();
        proxy.reset();
        let more = format!("more-{round}");
        create(&client, &namespace, std::slice::from_ref(&more)).await;
        owned(&client, &namespace, &more, &more).await;
        let mut reads = Vec::new();
        eventually(DEADLINE, "both watches are opened again", async || {
            reads.extend(proxy.requests());
            reads.retain(|request| request.starts_with("GET "));
            if reads.len() < 2 {
                Err(reads.clone())
            } else {
                Ok(())
            }
        })
        .await;
        let goes_on = |request: &String| {
            request.contains("watch=true")
                && !request.contains("resourceVersion=&")
                && !request.contains("sendInitialEvents")
        };
        assert!(reads.len() == 2 && reads.iter().all(goes_on), "{reads:#?}");
        let said = controller.log().split_off(log.len());
        assert!(
            !said.contains(" WARN ") && !said.contains("re-established"),
            "{said}"
        );
    }
}

/// A watch that is too far behind (410, as after a compaction) lists again, and sees the deletions. If the server returns 410
/// each time, the lists are sent with backoff.
#[tokio::test]
async fn r10b_expired_watch_lists_again() {
    const GONE: &str = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"too old resource version: 1 (2)","reason":"Expired","code":410}"#,
        "\n"
    );
    const EXPIRED: &str = concat!(
        r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"too old resource version: 1 (2)","reason":"Expired","code":410}}"#,
        "\n"
    );
    let old = async |(code, body)| {
        let setup = Setup::new("old").await;
        let Setup {
            client,
            namespace,
            proxy,
            controller,
        } = &setup;
        create(client, namespace, &names("foo", 1)).await;
        converged(client, namespace, &names("foo", 1)).await;
        let old = proxy.on("watch", "*").answer(Answer::json(code, body));
        proxy.disconnect();
        assert_paused(&old, "old").await;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        deployments
            .delete("foo-000", &DeleteParams::default())
            .await
            .unwrap();
        owned(client, namespace, "foo-000", "foo-000").await;
        for resource in ["foos", "deployments"] {
            let words = format!("the watch of {resource} fell too far behind: listing again");
            assert_eq!(controller.logged(&words), 1, "{words}");
        }
    };
    tokio::join!(old((410, GONE)), old((200, EXPIRED)));
}

/// A paged list starts again if the server rejects a later page (410, because its version was compacted). An object of the first
/// page that was deleted in between is not kept.
#[tokio::test]
async fn r10d_list_with_an_expired_page_starts_again() {
    const NO_STREAM: &str = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"sendInitialEvents is forbidden","reason":"Invalid","code":422}"#
    );
    const EXPIRED: &str = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"The provided continue parameter is too old","reason":"Expired","code":410}"#
    );
    let cluster = audited().await;
    let client = cluster.client().await;
    let namespace = cluster.namespace("pages").await;
    create(&client, &namespace, &names("foo", 5)).await;
    let proxy = Proxy::start(cluster.kube_config().await).await;
    proxy
        .on("watch", "foos")
        .nth(1)
        .answer(Answer::json(422, NO_STREAM));
    let gone = proxy.on("list", "foos").nth(2);
    let gone = gone.answer(Answer::json(410, EXPIRED));
    // In the second attempt. The first rule did not count the request that got the 410.
    let mut again = proxy.on("list", "foos").nth(2).hold(At::Server);
    let two_each = |request: &mut http::Request<Vec<u8>>| {
        let uri = request.uri().to_string().replace("limit=500", "limit=2");
        *request.uri_mut() = uri.parse().unwrap();
    };
    proxy.on("list", "foos").change(Duration::ZERO, two_each);
    let args = ["--namespace", &namespace, "--master", &proxy.url()];
    let controller = Controller::start(cluster, &args);
    again.arrived().await;
    assert_eq!(gone.hits(), 1);
    let lists = proxy.requests();
    let next = lists.iter().filter(|list| list.contains("continue="));
    assert_eq!(next.count(), 1, "{lists:?}");
    let foos: Api<Foo> = Api::namespaced(client.clone(), &namespace);
    let delete = DeleteParams::default();
    foos.delete("foo-000", &delete).await.unwrap();
    again.pass().await;
    converged(&client, &namespace, &names("foo", 5)[1..]).await;
    let words = "fell too far behind: listing again";
    assert_eq!(controller.logged(words), 1, "{words}");
    let requests = requests(cluster, &namespace);
    let of_the_deleted = requests.iter().filter(|event| subject(event) == "foo-000");
    assert_eq!(of_the_deleted.count(), 0);
}

/// The response to a write is lost, truncated or corrupted. Whether or not the API server executed the write, it is executed
/// exactly once in the end, and the Foo converges.
#[tokio::test]
async fn a_lost_or_broken_response_costs_no_second_write() {
    type Break = fn(On<'_>) -> Rule;
    let breaks: [(&str, Break); 4] = [
        ("cut before the API server", |on| on.cut(At::Server)),
        ("cut behind the API server", |on| on.cut(At::Client)),
        ("truncated", |on| on.truncate(20)),
        ("corrupted", |on| on.corrupt()),
    ];
    let writes = [
        ("create", "deployments"),
        ("update", "foos/status"),
        ("patch", "deployments"),
    ];
    let survive = async |(what, broken): (&str, Break)| {
        let rules =
            |proxy: &Proxy| writes.map(|(verb, resource)| broken(proxy.on(verb, resource).nth(1)));
        let (setup, rules) = Setup::with("broken", rules).await;
        let (client, namespace) = (&setup.client, &setup.namespace);
        let names = names("foo", 1);
        create(client, namespace, &names).await;
        converged(client, namespace, &names).await;
        let foos: Api<Foo> = Api::namespaced(client.clone(), namespace);
        let two = Patch::Merge(json!({ "spec": { "replicas": 2 } }));
        let params = PatchParams::default();
        foos.patch(&names[0], &params, &two).await.unwrap();
        converged(client, namespace, &names).await;
        assert!(rules.iter().all(|rule| rule.hits() == 1), "{what}");
        let counts = counts(&requests(audited().await, namespace));
        println!("{what}: {counts:#?}");
        for made in ["create deployments 201", "patch deployments 200"] {
            assert_eq!(counts[made], 1, "{what}: {counts:#?}");
        }
    };
    futures::future::join_all(breaks.into_iter().map(survive)).await;
}

/// The first half of an event.
const EVENT: &str = r#"{"type":"ADDED","object":{"kind":"Foo","apiVersion":"samplecontroller.k8s.io/v1alpha1","metadata":{"na"#;

/// Nonsense instead of a watch is logged in one line per resource. The watch is retried with backoff, and recovers with the API
/// server.
#[tokio::test]
async fn an_invalid_watch_is_logged_and_retried_with_backoff() {
    const HTML: &str = "<html><body><h1>502 Bad Gateway</h1></body></html>";
    const OTHER: &str = "{\"type\":\"ADDED\",\"object\":{\"kind\":\"X\"}}\n";
    let html = |code| Answer {
        code,
        headers: &[("content-type", "text/html")],
        body: HTML,
        breaks_off: false,
    };
    let cut = Answer {
        breaks_off: true,
        ..Answer::json(200, EVENT)
    };
    let nonsense = [
        ("garbage", "watch", Answer::json(200, "garbage\n")),
        (
            "an object of another kind",
            "watch",
            Answer::json(200, OTHER),
        ),
        ("a connection that breaks in a line", "watch", cut),
        ("HTML as a watch", "watch", html(200)),
        ("HTML for everything", "*", html(200)),
        ("502 and HTML", "*", html(502)),
        ("500 and nothing", "*", Answer::json(500, "")),
    ];
    let survive = async |(what, verb, answer)| {
        let nonsense = |proxy: &Proxy| proxy.on(verb, "*").answer(answer);
        let (mut setup, nonsense) = Setup::with("nonsense", nonsense).await;
        assert_paused(&nonsense, what).await;
        setup.proxy.clear();
        let Setup {
            client,
            namespace,
            controller,
            ..
        } = &mut setup;
        create(client, namespace, &["after".to_owned()]).await;
        owned(client, namespace, "after", "after").await;
        for resource in ["foos", "deployments"] {
            let words = format!("cannot watch {resource}");
            println!("{what}: {}", controller.wait_for_log(&words).await);
            assert_eq!(controller.logged(&words), 1, "{what}");
        }
        assert_eq!(controller.stop().await, 0);
    };
    futures::future::join_all(nonsense.into_iter().map(survive)).await;
}

/// A watch that ends immediately, without an error, is reopened with backoff.
#[tokio::test]
async fn a_watch_that_ends_immediately_is_reopened_with_backoff() {
    let ends = async |(what, body)| {
        let ends = |proxy: &Proxy| proxy.on("watch", "*").answer(Answer::json(200, body));
        let (_setup, ends) = Setup::with("ends", ends).await;
        assert_paused(&ends, what).await;
    };
    tokio::join!(ends(("nothing", "")), ends(("half a line", EVENT)));
}

/// Checks that both watches are retried with pauses from 100 ms, doubled each time. The first five pauses of each take 1.5 s,
/// minus a fifth for jitter. The first attempt of each may be two requests: a streamed list, and a paged list instead.
async fn assert_paused(rule: &Rule, what: &str) {
    let begun = Instant::now();
    eventually(DEADLINE, what, async || match rule.hits() {
        12.. => Ok(()),
        count => Err(count),
    })
    .await;
    let took = begun.elapsed();
    println!("{what}: twelve requests in {took:?}");
    assert!(
        took > Duration::from_secs(1),
        "{what}: twelve requests in {took:?}"
    );
}

/// A controller in its own namespace, connected to the API server through a proxy.
struct Setup {
    client: Client,
    namespace: String,
    proxy: Proxy,
    controller: Controller,
}

impl Setup {
    async fn new(prefix: &str) -> Self {
        Self::with(prefix, |_| ()).await.0
    }

    /// Starts with these rules in the proxy.
    async fn with<R>(prefix: &str, rules: impl FnOnce(&Proxy) -> R) -> (Self, R) {
        let cluster = audited().await;
        let client = cluster.client().await;
        let namespace = cluster.namespace(prefix).await;
        let proxy = Proxy::start(cluster.kube_config().await).await;
        let rules = rules(&proxy);
        let url = proxy.url();
        // No resync enqueues anything while the test runs.
        let args = [
            "--namespace",
            &namespace,
            "--master",
            &url,
            "--resync",
            "1h",
        ];
        let controller = Controller::start(cluster, &args);
        let setup = Self {
            client,
            namespace,
            proxy,
            controller,
        };
        (setup, rules)
    }
}
