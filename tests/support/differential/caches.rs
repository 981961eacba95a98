//! Comparison of watch caches: expired and future versions, empty caches, disabled streamed lists, and the end of a watch.

use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use operator_testkit::{
    api_server::{Kind, Lag, Method, Server},
    cluster::{Cluster, Options, STREAMED_LISTS, eventually},
};
use serde_json::{Value, json};

use super::{
    DEADLINE, Run,
    side::{ADMIN, Sent, Side, Simulated, at, get, path},
    special::{JSON, MERGE, ask, both, foo, same, same_of, sides},
    steps::FOO,
};

/// Replaces numbers, because versions in messages differ on each side.
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

/// Compacts etcd up to `version`.
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

/// Returns one side's newest version and the token of the second page.
async fn page(run: &mut Run, foos: &str) -> (String, String) {
    let (_, page) = run.side.send(&get(format!("{foos}?limit=1")), ADMIN).await;
    let text = |field: &str| page["metadata"][field].as_str().unwrap().to_owned();
    (text("resourceVersion"), text("continue"))
}

/// Returns a query from an expired version and the token of its second page.
type Query = fn(&(String, String)) -> String;

const QUERIES: [Query; 15] = [
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
    |_| "resourceVersion=99999999".to_owned(),
    |_| "watch=true&resourceVersion=x".to_owned(),
    |_| "watch=true&resourceVersionMatch=NotOlderThan&resourceVersion=0".to_owned(),
];

const WATCHES: [Query; 3] = [
    |page| format!("watch=true&timeoutSeconds=10&resourceVersion={}", page.0),
    |_| {
        "watch=true&timeoutSeconds=10&allowWatchBookmarks=true&sendInitialEvents=true\
         &resourceVersionMatch=NotOlderThan&resourceVersion=99999999"
            .to_owned()
    },
    |_| "watch=true&timeoutSeconds=1&resourceVersion=99999999".to_owned(),
];

/// Compares queries after a compaction and a restart of the API server.
#[tokio::test]
async fn versions_that_are_gone_are_rejected_alike() {
    let cluster = Cluster::start(Options::default());
    if !cluster.has(STREAMED_LISTS).await {
        return;
    }
    cluster.install_crd().await;
    let namespace = "gone";
    let foos = path(FOO, namespace);
    let mut sides = both(&cluster, namespace).await;
    no_watch_begins_with_a_cold_cache(&cluster, &mut sides, &foos).await;
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
            let watch = run.side.watch(&sent, ADMIN).await.ok().unwrap();
            told.push(run.side.rest(watch, Duration::from_secs(12)).await);
        }
        assert_eq!(
            without_numbers(&json!(told[0])),
            without_numbers(&json!(told[1])),
        );
    }
    everywhere_is_alike(&mut sides).await;
    no_list_is_streamed_where_none_can_be(&cluster, &mut sides, &foos).await;
}

/// Compares a watch on an API server whose cache is not filled yet: the response specifies when to retry. A real API server
/// fills the cache of a custom resource on the first request, so the first watch is nearly always too early.
async fn no_watch_begins_with_a_cold_cache(cluster: &Cluster, sides: &mut [Run; 2], foos: &str) {
    const TRIES: usize = 10;
    let watch = "watch=true&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion=5";
    if let Side::Simulated(it) = &mut sides[1].side {
        it.server.cold = true;
    }
    for number in 0..TRIES {
        let group = "samplecontroller.k8s.io";
        let cold = format!("cold-{number}.{group}");
        let definition = super::definition().to_string().replace(group, &cold);
        let applied = cluster.kubectl_stdin(&["apply", "-f", "-"], &definition);
        applied.await.success();
        let crd = format!("crd/foos.{cold}");
        let wait = ["wait", "--for=condition=Established", "--timeout=30s", &crd];
        cluster.kubectl(&wait).await.success();
        let mut answers = Vec::new();
        for (run, path) in sides.iter_mut().zip([&foos.replace(group, &cold), foos]) {
            let refused = run.side.watch(&get(format!("{path}?{watch}")), ADMIN).await;
            let refused = refused.err();
            answers.push(refused.map(|(code, body)| (code, run.names.normal(body))));
        }
        let code = answers[0].as_ref().map(|(code, _)| *code);
        // A 404 means that the resource is not served yet.
        if code.is_some_and(|code| code != 404) {
            assert_eq!(answers[0], answers[1], "the real one's first");
            if let Side::Simulated(it) = &mut sides[1].side {
                it.server.cold = false;
            }
            return;
        }
    }
    panic!("no cold cache in {TRIES} tries");
}

/// Query of a streamed list.
const STREAM: &str = "watch=true&timeoutSeconds=290&allowWatchBookmarks=true&sendInitialEvents=true\
                      &resourceVersionMatch=NotOlderThan&resourceVersion=";

/// Compares the lists and watches of the operator across all namespaces.
async fn everywhere_is_alike(sides: &mut [Run; 2]) {
    for kind in [FOO, Kind::Deployment] {
        let info = kind.info();
        let all = format!("/apis/{}/{}/{}", info.group, info.version, info.plural);
        same_of(
            sides,
            Method::GET,
            &format!("{all}?limit=500"),
            "",
            &Value::Null,
        )
        .await;
        let stream = get(format!("{all}?{STREAM}"));
        let mut told = Vec::new();
        for run in &mut *sides {
            let watch = run.side.watch(&stream, ADMIN).await.ok().unwrap();
            told.push(run.events(watch, |event| event["type"] == "BOOKMARK").await);
        }
        assert_eq!(told[0], told[1], "{all} (the real one's first)");
    }
}

/// Compares lists on an API server without the feature `WatchList`.
async fn no_list_is_streamed_where_none_can_be(
    cluster: &Cluster,
    sides: &mut [Run; 2],
    foos: &str,
) {
    let flags = "--feature-gates=WatchList=false";
    let kubeconfig = cluster.start_second_apiserver_with(flags).await;
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.unwrap();
    config.proxy_url = None;
    config.default_retry = false;
    sides[0].side = Side::Real(config.try_into().unwrap());
    if let Side::Simulated(it) = &mut sides[1].side {
        it.server.watch_list = false;
    }
    let queries = [
        (STREAM, 422),
        (
            "watch=true&resourceVersionMatch=NotOlderThan&resourceVersion=",
            422,
        ),
        ("limit=500", 200),
    ];
    for (query, code) in queries {
        let path = format!("{foos}?{query}");
        let (is, _) = same_of(sides, Method::GET, &path, "", &Value::Null).await;
        assert_eq!(is, code, "{path}");
    }
}

/// A watch with one existing object and no changes delivers one bookmark 2 s before its end.
#[tokio::test]
async fn the_simulated_watch_ends_like_the_real_one() {
    let (mut sides, namespace) = sides("e").await;
    let foos = path(FOO, &namespace);
    same_of(&mut sides, Method::POST, &foos, JSON, &foo("a")).await;
    let watch = format!("{foos}?watch=true&timeoutSeconds=4&allowWatchBookmarks=true");
    for run in &mut sides {
        let mut types = Vec::new();
        // The real API server may be too busy in these 2 s to send the bookmark. It may also reject watches on a new resource
        // at first.
        for replicas in 2..=6 {
            let Ok(watch) = run.side.watch(&get(&watch), ADMIN).await else {
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            };
            let events = run.side.rest(watch, Duration::from_secs(6)).await;
            types = events
                .into_iter()
                .map(|event| event["type"].clone())
                .collect();
            // It may repeat the bookmark, depending on its timer.
            types.dedup();
            if types.len() > 1 {
                break;
            }
            // It sends no bookmark while its cache has seen no change.
            let change = json!({ "spec": { "replicas": replicas } });
            let change = ask(Method::PATCH, format!("{foos}/a"), MERGE, &change);
            run.side.send(&change, ADMIN).await;
        }
        assert_eq!(types, ["ADDED", "BOOKMARK"]);
    }
}

/// A lagging cache delays cached lists and watches, but not consistent lists.
#[test]
fn a_lagging_cache_delays_cached_reads() {
    let mut it = Simulated::new("n");
    let foos = path(FOO, "n");
    let send = |it: &mut Simulated, sent: &Sent| it.send(sent, ADMIN).unwrap();
    send(&mut it, &ask(Method::POST, foos.as_str(), JSON, &foo("a")));
    let lag = Duration::from_secs(2);
    it.server.set_lag(&it.store, at(it.now), Lag::By(lag));
    send(&mut it, &ask(Method::POST, foos.as_str(), JSON, &foo("b")));
    let list = |query: &str| get(format!("{foos}?{query}"));
    let names = |answer: operator_testkit::api_server::Answer| match answer {
        operator_testkit::api_server::Answer::Whole { body, .. } => {
            body["items"].as_array().unwrap().len()
        }
        operator_testkit::api_server::Answer::Watch(_) => panic!("a list"),
    };
    assert_eq!(
        names(send(&mut it, &list("limit=500"))),
        2,
        "a list is never late"
    );
    assert_eq!(names(send(&mut it, &list("resourceVersion=0"))), 1);
    it.server.watch_list = true;
    let stream = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let operator_testkit::api_server::Answer::Watch(mut watch) =
        send(&mut it, &list(&format!("{stream}&resourceVersion=")))
    else {
        panic!("a watch");
    };
    assert_eq!(it.poll(&mut watch), Vec::<Value>::new(), "it waits");
    it.now += lag;
    let types = |events: Vec<Value>| {
        events
            .iter()
            .map(|it| it["type"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(types(it.poll(&mut watch)), ["ADDED", "ADDED", "BOOKMARK"]);
    it.server.set_lag(&it.store, at(it.now), Lag::Stuck);
    send(&mut it, &ask(Method::POST, foos.as_str(), JSON, &foo("c")));
    let operator_testkit::api_server::Answer::Watch(mut stuck) =
        send(&mut it, &list(&format!("{stream}&resourceVersion=")))
    else {
        panic!("a watch");
    };
    it.now += Duration::from_secs(3);
    let told = it.poll(&mut stuck);
    assert_eq!(
        (&told[0]["type"], &told[0]["object"]["code"]),
        (&json!("ERROR"), &json!(504))
    );
    assert!(stuck.is_over());
    assert_eq!(it.poll(&mut watch), Vec::<Value>::new());
}
