#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it cannot test"
)]

use std::net::Ipv6Addr;

use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

use super::*;
use crate::{
    api::kind::Kind,
    cmd::doctor::replica::ask,
    config::{app::tests::APP, environment::Host, settings::Config},
    telemetry::state::{self, PATH},
};

/// Both default addresses, each on a free port.
fn defaults() -> [SocketAddr; 2] {
    let http = Config::shipped(&APP).http;
    [http.addr.unwrap(), http.metrics_addr].map(|addr| SocketAddr::new(addr.ip(), 0))
}

/// By default a pod can be reached over both address families.
#[tokio::test]
async fn both_families_are_served_by_default() {
    for addr in defaults() {
        let listener = listen("http.addr", addr, bind).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .await
            .unwrap();
        if let Err(error) = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
            eprintln!("NOT TESTED: this machine has no IPv6, not even ::1 ({error})");
            continue;
        }
        TcpStream::connect((Ipv6Addr::LOCALHOST, port))
            .await
            .unwrap();
    }
}

/// Without IPv6 in the kernel, the default address is the IPv4 wildcard. Other errors and other addresses are not replaced.
#[tokio::test]
async fn without_ipv6_the_default_is_ipv4() {
    use rustix::io::Errno;
    let failing = |errno: Errno| {
        move |addr: SocketAddr| match addr {
            SocketAddr::V6(_) => Err(errno.into()),
            SocketAddr::V4(_) => bind(addr),
        }
    };
    for addr in defaults() {
        for errno in [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL] {
            let listener = listen("http.addr", addr, failing(errno)).unwrap();
            let bound = listener.local_addr().unwrap();
            assert_eq!(bound.ip(), IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        }
        let taken = listen("http.addr", addr, failing(Errno::ADDRINUSE)).unwrap_err();
        assert!(
            taken
                .to_string()
                .starts_with("http.addr: cannot listen on [::]:0: ")
        );
    }
    let one = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    listen("http.addr", one, failing(Errno::ADDRNOTAVAIL)).unwrap_err();
}

/// The peer with the most connections loses its oldest. If peers have equally many, the oldest connection of all is lost.
#[test]
fn the_peer_with_the_most_connections_loses_its_oldest() {
    let peers = |text: &str| {
        let peers: Vec<_> = text.bytes().map(|b| IpAddr::from([10, 0, 0, b])).collect();
        crowding(peers.into_iter())
    };
    assert_eq!(peers("abbb"), Some(1));
    assert_eq!(peers("babab"), Some(0));
    assert_eq!(peers("cabab"), Some(1));
    assert_eq!(peers("abc"), Some(0));
    assert_eq!(peers(""), None);
}

fn state() -> State {
    let fence = state::Fence {
        open: false,
        record: None,
        policy_rejects_for_seconds: None,
    };
    State {
        identity: "a".into(),
        version: "1".into(),
        installation: String::new(),
        commit: None,
        uptime_seconds: 1.5,
        caches: Vec::new(),
        lease: None,
        term: None,
        fence,
        controllers: Vec::new(),
        queue: None,
    }
}

fn object(name: &ObjectName) -> Result<ObjectWork, String> {
    let widget = Kind::custom("example.com", "v1", "Widget", "widgets");
    let (_, key) = name.choose(&[&widget])?;
    if key.name() != "a" {
        return Err(format!("no Widget {key} in the cache"));
    }
    Ok(ObjectWork {
        kind: "Widget",
        key,
        cached: None,
        queue: None,
        records: Vec::new(),
    })
}

/// A fake API server. The token "good" is valid and grants `/debug/state` only.
fn api_server() -> Client {
    let service = service_fn(|request: Request<Body>| async move {
        let body = request.into_body().collect().await?.to_bytes();
        let mut review: Value = serde_json::from_slice(&body)?;
        let allowed = review["spec"]["nonResourceAttributes"]["path"] == "/debug/state";
        let authenticated = review["spec"]["token"] == "good";
        review["status"] = json!({
            "authenticated": authenticated, "allowed": allowed, "user": { "username": "u" },
        });
        Ok::<_, BoxError>(Response::new(Body::from(serde_json::to_vec(&review)?)))
    });
    Client::new(service, "default")
}

/// Starts a server of health, metrics and optionally state, and returns its address.
async fn serve(metrics_auth: bool, debug_state: bool) -> (String, JoinSet<()>) {
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = config::Http {
        addr: Some(free),
        metrics_addr: free,
        metrics_auth,
        ..Config::shipped(&APP).http
    };
    let server = Server::bind(&APP, &config).await.unwrap();
    let server = if debug_state {
        server.with_state(state, object)
    } else {
        server
    };
    let (scheme, listener) = match &server.secure {
        Some((listener, _)) => ("https", listener),
        None => ("http", server.plain.as_ref().unwrap()),
    };
    let address = format!("{scheme}://{}", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    let health = Health::new(&Host::of_this_process());
    serving.spawn(server.serve(api_server(), health, Metrics::disconnected(&APP)));
    (address, serving)
}

fn bearer(token: &str) -> kube::Config {
    let mut kube = kube::Config::new(http::Uri::default());
    kube.auth_info.token = Some(token.to_owned().into());
    kube
}

/// `doctor` reads the state only where it is served. If authorization is on, it needs a token with the permission.
#[tokio::test]
async fn state_needs_authorization() {
    let (open, _serving) = serve(false, true).await;
    let nobody = || kube::Config::new(http::Uri::default());
    assert_eq!(ask(&open, PATH, nobody()).await, Ok(state()));

    let (guarded, _serving) = serve(true, true).await;
    assert_eq!(ask(&guarded, PATH, bearer("good")).await, Ok(state()));
    for (kube, refusal) in [
        (nobody(), "401 Unauthorized: unauthorized: send "),
        (
            bearer("bad"),
            "401 Unauthorized: unauthorized: the API server rejected this token",
        ),
    ] {
        let refused = ask::<State>(&guarded, PATH, kube).await.unwrap_err();
        assert!(refused.starts_with(refusal), "{refused}");
    }

    let (off, _serving) = serve(true, false).await;
    let missing = "404 Not Found: not found; available paths: /metrics";
    assert_eq!(
        ask::<State>(&off, PATH, bearer("good")).await,
        Err(missing.to_owned())
    );
}

/// The state of one object has the same path, and requires the same permissions.
#[tokio::test]
async fn the_state_of_one_object_is_a_query() {
    let (open, _serving) = serve(false, true).await;
    let nobody = || kube::Config::new(http::Uri::default());
    for query in ["object=n/a", "object=n%2Fa", "pretty&object=n%2fa&x=y"] {
        let target = format!("{PATH}?{query}");
        let state: Result<ObjectState, _> = ask(&open, &target, nobody()).await;
        let state = state.unwrap();
        assert_eq!((&*state.namespace, &*state.name), ("n", "a"), "{query}");
        assert_eq!((&*state.kind, state.leads), ("Widget", false));
    }
    for (object, refusal) in [
        ("n/b", "404 Not Found: no Widget n/b in the cache"),
        ("", "400 Bad Request: object="),
        ("a", "400 Bad Request: object=a"),
        ("/a", "400 Bad Request: object=/a"),
        ("n/a/b/c", "400 Bad Request: object=n/a/b/c"),
        ("n/A", "400 Bad Request: object=n/A"),
    ] {
        let target = format!("{PATH}?object={object}");
        let refused = ask::<ObjectState>(&open, &target, nobody()).await;
        let form =
            "must be NAMESPACE/NAME, KIND/NAMESPACE/NAME, or KIND/NAME of a cluster-scoped object";
        let expected = match refusal.strip_prefix("400") {
            Some(_) => format!("{refusal}: {form}"),
            None => refusal.to_owned(),
        };
        assert_eq!(refused.unwrap_err(), expected);
    }

    let (guarded, _serving) = serve(true, true).await;
    for target in ["?object=n/a", "?object=n/b", "?object="] {
        let target = format!("{PATH}{target}");
        let refused = ask::<ObjectState>(&guarded, &target, bearer("bad")).await;
        assert!(refused.unwrap_err().starts_with("401 Unauthorized: "));
    }
    let target = format!("{PATH}?object=n/a");
    let state = ask::<ObjectState>(&guarded, &target, bearer("good")).await;
    assert_eq!(state.unwrap().name, "a");
}
