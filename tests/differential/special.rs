//! What needs its own stage: versions that are gone, the end of a watch, the fencing policy.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    Run,
    api::{CONTROLLER, Kind, Lag, Method, RECORD, Server, User},
    cluster::{self, Cluster, Options, eventually},
    side::{ADMIN, Sent, Side, Simulated, at, path},
};

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const DEADLINE: Duration = Duration::from_secs(30);

fn ask(method: Method, path: impl Into<String>, content_type: &'static str, body: &Value) -> Sent {
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    Sent {
        method,
        path: path.into(),
        content_type,
        accept: None,
        body,
    }
}

fn get(path: impl Into<String>) -> Sent {
    ask(Method::GET, path, "", &Value::Null)
}

fn foo(name: &str) -> Value {
    json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "metadata": { "name": name },
        "spec": { "deploymentName": name, "replicas": 1 },
    })
}

/// Both, with a namespace of this name in each.
async fn both(cluster: &Cluster, namespace: &str) -> [Run; 2] {
    let simulated = Simulated::new(namespace);
    let create = json!({ "metadata": { "name": namespace } });
    let mut real = Side::Real(cluster.client().await);
    let create = ask(Method::POST, "/api/v1/namespaces", JSON, &create);
    let (code, created) = real.send(&create, ADMIN).await;
    assert_eq!(code, 201, "{created}");
    [
        Run::new(real),
        Run::new(Side::Simulated(Box::new(simulated))),
    ]
}

/// What both say, which is the same.
async fn same(sides: &mut [Run; 2], user: User<'_>, sent: [Sent; 2]) -> (u16, Value) {
    let mut answers = Vec::new();
    for (run, sent) in sides.iter_mut().zip(&sent) {
        let (code, body) = run.side.send(sent, user).await;
        answers.push((code, run.names.normal(body)));
    }
    let [real, simulated] = <[_; 2]>::try_from(answers).unwrap();
    assert_eq!(
        real, simulated,
        "{} {} by {user:?} (the real one's first)",
        sent[0].method, sent[0].path
    );
    real
}

async fn same_of(
    sides: &mut [Run; 2],
    method: Method,
    path: &str,
    content_type: &'static str,
    body: &Value,
) -> (u16, Value) {
    let sent = || ask(method.clone(), path, content_type, body);
    same(sides, ADMIN, [sent(), sent()]).await
}

/// What versions are called in messages is each side's own.
fn without_numbers(value: &Value) -> Value {
    let text = value.to_string();
    let mut short = String::new();
    for c in text.chars() {
        if !c.is_ascii_digit() {
            short.push(c);
        } else if !short.ends_with('#') {
            short.push('#');
        }
    }
    serde_json::from_str(&short).unwrap_or(Value::String(short))
}

/// Forgets in etcd what there was before the newest version, which is returned.
async fn compact(cluster: &Cluster, version: &str) {
    let etcd = cluster.ready().pids["etcd"];
    let flags = std::fs::read_to_string(format!("/proc/{etcd}/cmdline")).unwrap();
    let url = flags
        .split('\0')
        .find_map(|flag| flag.strip_prefix("--listen-client-urls="));
    let mut config = kube::Config::new(url.unwrap().parse().unwrap());
    config.proxy_url = None;
    let etcd = kube::Client::try_from(config).unwrap();
    let body = json!({ "revision": version, "physical": true })
        .to_string()
        .into_bytes();
    let request = http::Request::post("/v3/kv/compaction").body(body).unwrap();
    etcd.request_text(request).await.unwrap();
}

/// The newest version and where the second page begins, on one side.
async fn page(run: &mut Run, foos: &str) -> (String, String) {
    let (_, page) = run.side.send(&get(format!("{foos}?limit=1")), ADMIN).await;
    let text = |field: &str| page["metadata"][field].as_str().unwrap().to_owned();
    (text("resourceVersion"), text("continue"))
}

/// A query, by a version that is gone and where its next page began.
type Query = fn(&(String, String)) -> String;

const QUERIES: [Query; 12] = [
    |page| format!("limit=1&continue={}", page.1),
    |page| format!("resourceVersion={}&resourceVersionMatch=Exact", page.0),
    |page| {
        format!(
            "resourceVersion={}&resourceVersionMatch=NotOlderThan",
            page.0
        )
    },
    |page| format!("resourceVersion={}", page.0),
    |page| format!("limit=1&resourceVersion={}", page.0),
    |page| {
        format!(
            "limit=1&resourceVersion={}&resourceVersionMatch=NotOlderThan",
            page.0
        )
    },
    |_| "resourceVersion=0".to_owned(),
    |_| "resourceVersion=0&limit=1".to_owned(),
    |_| "resourceVersion=x".to_owned(),
    |_| "resourceVersionMatch=Exact".to_owned(),
    |_| "resourceVersion=0&resourceVersionMatch=Exact".to_owned(),
    |_| "continue=garbage".to_owned(),
];

const WATCHES: [Query; 2] = [
    |page| format!("watch=true&timeoutSeconds=10&resourceVersion={}", page.0),
    |_| {
        "watch=true&timeoutSeconds=10&allowWatchBookmarks=true&sendInitialEvents=true\
         &resourceVersionMatch=NotOlderThan&resourceVersion=99999999"
            .to_owned()
    },
];

/// After a compaction and a restart of the API server.
#[tokio::test]
async fn versions_that_are_gone_are_refused_alike() {
    let cluster = Cluster::start(Options::default());
    cluster.install_crd().await;
    let namespace = "gone";
    let foos = path(Kind::Foo, namespace);
    let mut sides = both(&cluster, namespace).await;
    for name in ["a", "b", "c"] {
        same_of(&mut sides, Method::POST, &foos, JSON, &foo(name)).await;
    }
    let mut pages = Vec::new();
    for run in &mut sides {
        pages.push(page(run, &foos).await);
    }
    let more = json!({ "spec": { "replicas": 2 } });
    same_of(
        &mut sides,
        Method::PATCH,
        &format!("{foos}/c"),
        MERGE,
        &more,
    )
    .await;
    for run in &mut sides {
        let (newest, _) = page(run, &foos).await;
        match &mut run.side {
            Side::Real(_) => {
                compact(&cluster, &newest).await;
                cluster.kill_apiserver().await;
                cluster.start_apiserver().await;
            }
            Side::Simulated(it) => {
                it.store.compact(newest.parse().unwrap());
                it.server = Server::new(&it.store);
            }
        }
    }
    eventually(DEADLINE, "Foos are served again", async || {
        match sides[0].side.send(&get(foos.as_str()), ADMIN).await {
            (200, _) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    let [real, simulated] = [&pages[0], &pages[1]];
    let alike = |query: fn(&(String, String)) -> String| {
        let path = |page| get(format!("{foos}?{}", query(page)));
        [path(real), path(simulated)]
    };
    let mut told = Vec::new();
    for query in QUERIES {
        let sent = alike(query);
        let mut answers = Vec::new();
        let mut tokens = Vec::new();
        for (run, sent) in sides.iter_mut().zip(&sent) {
            let (code, body) = run.side.send(sent, ADMIN).await;
            tokens.push(
                body["metadata"]["continue"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            );
            let mut body = run.names.normal(body);
            if code == 410 && body["metadata"]["continue"].is_string() {
                body["metadata"]["continue"] = json!("a token");
            }
            answers.push((code, without_numbers(&body)));
        }
        assert_eq!(
            answers[0], answers[1],
            "{} (the real one's first)",
            sent[0].path
        );
        told.push(answers[0].0);
        if query as usize == QUERIES[0] as usize {
            let rest = |token: &str| get(format!("{foos}?continue={token}"));
            let (code, rest) = same(&mut sides, ADMIN, [rest(&tokens[0]), rest(&tokens[1])]).await;
            assert_eq!(
                (code, rest["items"].as_array().unwrap().len()),
                (200, 2),
                "b and c, as they are now"
            );
        }
    }
    assert_eq!(told[..2], [410, 410]);
    for query in WATCHES {
        let mut told = Vec::new();
        for (run, sent) in sides.iter_mut().zip(alike(query)) {
            let watch = run.side.watch(sent.path).await;
            told.push(run.side.rest(watch, Duration::from_secs(12)).await);
        }
        assert_eq!(
            without_numbers(&json!(told[0])),
            without_numbers(&json!(told[1]))
        );
    }
}

/// Of an object that is there, changes, and nothing: one bookmark 2 s before the end.
#[tokio::test]
async fn a_watch_ends_alike() {
    let cluster = cluster::shared();
    crate::install(cluster).await;
    let namespace = format!("e-{}", uuid::Uuid::new_v4().simple());
    let foos = path(Kind::Foo, &namespace);
    let mut sides = both(cluster, &namespace).await;
    same_of(&mut sides, Method::POST, &foos, JSON, &foo("a")).await;
    let watch = format!("{foos}?watch=true&timeoutSeconds=4&allowWatchBookmarks=true");
    let mut told = Vec::new();
    for run in &mut sides {
        let watch = run.side.watch(watch.clone()).await;
        let events = run.side.rest(watch, Duration::from_secs(6)).await;
        let mut types: Vec<_> = events
            .into_iter()
            .map(|event| event["type"].clone())
            .collect();
        // The real one says the last one several times, as its ticks fall.
        types.dedup();
        told.push(types);
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0], ["ADDED", "BOOKMARK"]);
}

/// A namespace that is on its way out takes nothing new.
#[tokio::test]
async fn a_namespace_ends_alike() {
    let cluster = cluster::shared();
    crate::install(cluster).await;
    let namespace = format!("t-{}", uuid::Uuid::new_v4().simple());
    let mut sides = both(cluster, &namespace).await;
    let foos = path(Kind::Foo, &namespace);
    let this = format!("/api/v1/namespaces/{namespace}");
    same_of(&mut sides, Method::POST, &foos, JSON, &foo("a")).await;
    same_of(&mut sides, Method::GET, &this, "", &Value::Null).await;
    same_of(&mut sides, Method::DELETE, &this, JSON, &json!({})).await;
    same_of(&mut sides, Method::DELETE, &this, JSON, &json!({})).await;
    let (code, _) = same_of(&mut sides, Method::POST, &foos, JSON, &foo("b")).await;
    assert_eq!(code, 403);
    let more = json!({ "spec": { "replicas": 2 } });
    same_of(
        &mut sides,
        Method::PATCH,
        &format!("{foos}/a"),
        MERGE,
        &more,
    )
    .await;
    same_of(
        &mut sides,
        Method::DELETE,
        &format!("{foos}/a"),
        JSON,
        &json!({}),
    )
    .await;
    let nowhere = path(Kind::Foo, "nowhere");
    same_of(&mut sides, Method::POST, &nowhere, JSON, &foo("a")).await;
    same_of(&mut sides, Method::GET, &nowhere, "", &Value::Null).await;
}

/// A cache that is behind: what comes late, and what does not.
#[test]
fn what_a_cache_has_not_seen_comes_late() {
    let mut it = Simulated::new("n");
    let foos = path(Kind::Foo, "n");
    let send = |it: &mut Simulated, sent: &Sent| it.send(sent, ADMIN).unwrap();
    send(&mut it, &ask(Method::POST, foos.as_str(), JSON, &foo("a")));
    let lag = Duration::from_secs(2);
    it.server.set_lag(&it.store, at(it.now), Lag::By(lag));
    send(&mut it, &ask(Method::POST, foos.as_str(), JSON, &foo("b")));
    let list = |query: &str| get(format!("{foos}?{query}"));
    let names = |answer: crate::api::Answer| match answer {
        crate::api::Answer::Whole { body, .. } => body["items"].as_array().unwrap().len(),
        crate::api::Answer::Watch(_) => panic!("a list"),
    };
    assert_eq!(
        names(send(&mut it, &list("limit=500"))),
        2,
        "a list is never late"
    );
    assert_eq!(names(send(&mut it, &list("resourceVersion=0"))), 1);
    let stream = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let crate::api::Answer::Watch(mut watch) =
        send(&mut it, &list(&format!("{stream}&resourceVersion=")))
    else {
        panic!("a watch");
    };
    assert_eq!(
        watch.poll(&it.store, &it.server, at(it.now)),
        Vec::<Value>::new(),
        "it waits"
    );
    it.now += lag;
    let types = |events: Vec<Value>| {
        events
            .iter()
            .map(|it| it["type"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        types(watch.poll(&it.store, &it.server, at(it.now))),
        ["ADDED", "ADDED", "BOOKMARK"]
    );
    it.server.set_lag(&it.store, at(it.now), Lag::Stuck);
    send(&mut it, &ask(Method::POST, foos.as_str(), JSON, &foo("c")));
    let crate::api::Answer::Watch(mut stuck) =
        send(&mut it, &list(&format!("{stream}&resourceVersion=")))
    else {
        panic!("a watch");
    };
    it.now += Duration::from_secs(3);
    let told = stuck.poll(&it.store, &it.server, at(it.now));
    assert_eq!(
        (&told[0]["type"], &told[0]["object"]["code"]),
        (&json!("ERROR"), &json!(504))
    );
    assert!(stuck.is_over());
    assert_eq!(
        watch.poll(&it.store, &it.server, at(it.now)),
        Vec::<Value>::new()
    );
}

/// Every write that the policy may be about, by everybody, under every holder: the same answers, and the same words.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a list of writes")]
async fn the_fencing_policy_judges_alike() {
    let cluster = cluster::shared();
    crate::install(cluster).await;
    let namespace = format!("f-{}", uuid::Uuid::new_v4().simple());
    let mut sides = both(cluster, &namespace).await;
    let system = json!({ "metadata": { "name": RECORD.0 } });
    sides[0]
        .side
        .send(
            &ask(Method::POST, "/api/v1/namespaces", JSON, &system),
            ADMIN,
        )
        .await;
    let policy = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/deploy/components/fencing/policy.yaml"
    );
    cluster.kubectl(&["apply", "-f", policy]).await.success();
    if let Side::Simulated(it) = &mut sides[1].side {
        it.store.create_namespace(at(it.now), RECORD.0);
        it.store.install_fencing(at(it.now));
    }
    let (foos, deployments) = (
        path(Kind::Foo, &namespace),
        path(Kind::Deployment, &namespace),
    );
    let owner = json!([{
        "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "f", "uid": "u", "controller": true,
    }]);
    let deployment = |name: &str, owners: &Value| {
        let mut deployment = crate::steps::valid(Kind::Deployment);
        deployment["metadata"] = json!({ "name": name, "ownerReferences": owners });
        deployment
    };
    same_of(&mut sides, Method::POST, &foos, JSON, &foo("f")).await;
    for (name, owners) in [("owned", &owner), ("free", &json!([]))] {
        same_of(
            &mut sides,
            Method::POST,
            &deployments,
            JSON,
            &deployment(name, owners),
        )
        .await;
    }
    let replicas = json!({ "spec": { "replicas": 2 } });
    let status = json!({ "status": { "availableReplicas": 1 } });
    let stale = json!({ "metadata": { "resourceVersion": "1" } });
    let invalid = json!({ "spec": { "replicas": -1 } });
    let dry = |path: String| format!("{path}?dryRun=All");
    let delete = |name: &str, mut options: Value| {
        options["dryRun"] = json!(["All"]);
        (
            Method::DELETE,
            format!("{deployments}/{name}"),
            JSON,
            options,
        )
    };
    let writes = [
        (
            Method::POST,
            dry(deployments.clone()),
            JSON,
            deployment("new", &owner),
        ),
        (
            Method::POST,
            dry(deployments.clone()),
            JSON,
            deployment("new", &json!([])),
        ),
        (
            Method::POST,
            dry(deployments.clone()),
            JSON,
            deployment("owned", &owner),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            replicas.clone(),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            json!({}),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            stale.clone(),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            invalid,
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/free")),
            MERGE,
            replicas.clone(),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/free")),
            MERGE,
            json!({ "metadata": { "ownerReferences": owner } }),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            json!({ "metadata": { "ownerReferences": null } }),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned/scale")),
            MERGE,
            replicas.clone(),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned/status")),
            MERGE,
            json!({ "status": { "replicas": 1 } }),
        ),
        delete("owned", json!({ "propagationPolicy": "Background" })),
        delete(
            "owned",
            json!({ "preconditions": { "resourceVersion": "1" } }),
        ),
        delete("free", json!({})),
        delete("none", json!({})),
        (
            Method::PATCH,
            dry(format!("{foos}/f/status")),
            MERGE,
            status,
        ),
        (Method::PATCH, dry(format!("{foos}/f/status")), MERGE, stale),
        (Method::PATCH, dry(format!("{foos}/f")), MERGE, replicas),
    ];
    let long = "p".repeat(140);
    let users = [
        User {
            name: CONTROLLER,
            pod: Some(("pod-a", "uid-a")),
        },
        User {
            name: CONTROLLER,
            pod: Some((&long, "uid-a")),
        },
        User {
            name: CONTROLLER,
            pod: None,
        },
        User {
            name: "somebody",
            pod: Some(("pod-b", "uid-b")),
        },
    ];
    let long_holder = format!("{}_uid-a", &long[..122]);
    let record = format!("{}/{}", path(Kind::ServiceAccount, RECORD.0), RECORD.1);
    for holder in [
        None,
        Some("pod-a_uid-a"),
        Some("pod-b_uid-b"),
        Some(&*long_holder),
    ] {
        let named = json!({ "metadata": { "annotations": { "samplecontroller.k8s.io/lease-holder": holder } } });
        for run in &mut sides {
            let (code, body) = run
                .side
                .send(&ask(Method::PATCH, record.as_str(), MERGE, &named), ADMIN)
                .await;
            assert_eq!(code, 200, "{body}");
        }
        // Until the API server knows it.
        let words = holder.map_or("nobody does".to_owned(), |holder| {
            format!("\"{holder}\" does")
        });
        let probe = User {
            name: CONTROLLER,
            pod: Some(("pod-z", "uid-z")),
        };
        let patch = ask(
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            &json!({}),
        );
        eventually(DEADLINE, "the policy goes by the record", async || {
            let (_, refused) = sides[0].side.send(&patch, probe).await;
            let message = refused["message"].as_str().unwrap_or_default();
            if message.contains(&words) {
                Ok(())
            } else {
                Err(refused)
            }
        })
        .await;
        for user in users {
            for (method, path, content_type, body) in &writes {
                let sent = || ask(method.clone(), path.as_str(), content_type, body);
                same(&mut sides, user, [sent(), sent()]).await;
            }
        }
    }
}
