#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[cfg(target_os = "linux")]
mod delivery;

use std::{
    convert::Infallible,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Instant,
};

use http_body_util::BodyExt as _;
#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::{Barrier, watch},
    time::{sleep, timeout},
};

use super::*;
#[cfg(target_os = "linux")]
use crate::testing::fixtures::unsent;
use crate::{
    client::fence::{is_refused, term::Term},
    config::{app::tests::APP, clock::Clock},
    testing::fixtures::silent,
};

/// Many times the kernel's limit, and less than its default.
const LONG: Duration = Duration::from_secs(10);

/// An API server reads nothing of a leader's write until the term has ended, and then everything.
///
/// Without an election, the kernel continues to send, although the request was cancelled and its connection closed long before.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn h19_a_write_not_delivered_in_time_is_never_delivered() {
    for enabled in [true, false] {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        // The server's kernel has room for a part of the body. The client's kernel has room for the rest.
        SockRef::from(&server).set_recv_buffer_size(1).unwrap();
        let body = [b'{'; 16 << 10];
        let election = LeaderElection {
            enabled,
            lease_duration: Duration::from_secs(2),
            renew_deadline: Duration::from_secs(1),
            ..Config::shipped(&APP).leader_election
        };
        let mut lasts = Duration::from_millis(50);
        let (mut connection, client_address) = loop {
            lasts *= 2;
            let start = Instant::now();
            let clock = Clock::from_fn(move || start.elapsed());
            let client = client(&server, &election, Term::new(1, 0, lasts, clock));
            let write = Request::post("/apis/apps/v1/namespaces/n/deployments");
            let write = client.send(write.body(Body::from(body.to_vec())).unwrap());
            let (answer, accepted) = tokio::join!(write, server.accept());
            assert!(answer.is_err());
            let (connection, client_address) = accepted.unwrap();
            // On a busy machine, the term may end before anything is sent.
            let sent = timeout(Duration::from_millis(100), connection.peek(&mut [0])).await;
            if matches!(sent, Ok(Ok(1..))) {
                break (connection, client_address);
            }
            assert!(lasts < LONG, "nothing is sent");
        };
        let sender = [client_address, server.local_addr().unwrap()];
        if enabled {
            let given_up = async {
                while unsent(sender).is_some() {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            let given_up = timeout(LONG, given_up).await;
            given_up.expect("the kernel goes on sending");
        }
        // Reads to the end of the connection. The end is an error if the sender's kernel gave up.
        let mut delivered = Vec::new();
        let read = timeout(LONG, connection.read_to_end(&mut delivered)).await;
        let whole = delivered.ends_with(&body);
        assert_eq!(whole, !enabled, "{} bytes, {read:?}", delivered.len());
    }
}

fn client(server: &TcpListener, election: &LeaderElection, term: Term) -> Client {
    let address = server.local_addr().unwrap();
    let mut kube = KubeConfig::new(format!("http://{address}").parse().unwrap());
    kube.root_cert = Some(Vec::new());
    let term = watch::channel(Some(term)).1;
    let cluster = Cluster {
        server: kube.cluster_url.clone(),
        namespace: "default".to_owned(),
        requests: transport(
            &kube,
            credentials(),
            election,
            &Connections::new(usize::MAX),
        )
        .unwrap(),
        lease: lease_transport(kube, election).unwrap(),
        pod_namespace: None,
    };
    let metrics = Metrics::disconnected(&APP);
    let (client, ..) = cluster.fenced(&FenceLayer::new(term, &metrics), &metrics);
    client
}

fn credentials() -> Credentials {
    let mut nobody = KubeConfig::new(http::Uri::from_static("http://localhost"));
    Credentials::take(&mut nobody).unwrap()
}

/// Connections that a slow API server caused to be opened are closed again, although one connection is in constant use.
#[tokio::test]
async fn idle_connections_are_closed() {
    const AT_ONCE: usize = 6;
    let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let term = Term::new(1, 0, LONG, Clock::from_fn(|| Duration::ZERO));
    let client = client(&server, &Config::shipped(&APP).leader_election, term);
    let open = Arc::new(watch::Sender::new(0));
    let all = Arc::new(Barrier::new(AT_ONCE));
    let serve = async {
        loop {
            let (mut connection, _) = server.accept().await.unwrap();
            open.send_modify(|open| *open += 1);
            let (open, mut all) = (Arc::clone(&open), Some(Arc::clone(&all)));
            tokio::spawn(async move {
                while matches!(connection.read(&mut [0; 4096]).await, Ok(1..)) {
                    if let Some(all) = all.take() {
                        all.wait().await;
                    }
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    connection.write_all(answer).await.unwrap();
                }
                open.send_modify(|open| *open -= 1);
            });
        }
    };
    let ask = async || {
        let get = Request::get("/apis/apps/v1/namespaces/n/deployments");
        client.send(get.body(Body::empty()).unwrap()).await.unwrap();
    };
    let asked = async {
        futures::future::join_all((0..AT_ONCE).map(|_| ask())).await;
        tokio::time::pause();
        let mut left = open.subscribe();
        while *left.borrow_and_update() > 1 {
            tokio::time::advance(IDLE / 4).await;
            ask().await;
        }
    };
    let asked = timeout(IDLE * 3, asked);
    tokio::select! {
        asked = asked => asked.unwrap(),
        () = serve => {}
    }
}

/// The write of the fencing record may wait for the slowest webhook, also with a short Lease.
#[tokio::test]
async fn r4d_the_client_of_the_election_waits_for_the_slowest_webhook() {
    let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mut kube = KubeConfig::new(
        format!("http://{}", server.local_addr().unwrap())
            .parse()
            .unwrap(),
    );
    kube.root_cert = Some(Vec::new());
    let election = LeaderElection {
        lease_duration: Duration::from_secs(2),
        renew_deadline: Duration::from_secs(1),
        ..Config::shipped(&APP).leader_election
    };
    let client = Client::new(lease_transport(kube, &election).unwrap(), "default");
    let write = Request::patch("/api/v1/namespaces/n/serviceaccounts/a");
    let write = client.send(write.body(Body::empty()).unwrap());
    let serve = async {
        let (mut connection, _) = server.accept().await.unwrap();
        assert!(connection.read(&mut [0; 4096]).await.unwrap() > 0);
        tokio::time::pause();
        sleep(Duration::from_secs(30)).await;
        tokio::time::resume();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        connection.write_all(answer).await.unwrap();
    };
    let (answered, ()) = tokio::join!(write, serve);
    answered.unwrap();
}

/// A name has two addresses, and the first drops each packet. Both clients connect to the second, with all timings of the
/// Lease.
#[tokio::test(start_paused = true)]
async fn a_host_with_one_silent_address_is_reached() {
    let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = server.local_addr().unwrap();
    let (silent, _backlog) = silent(address.port());

    let shipped = Config::shipped(&APP).leader_election;
    let long = LeaderElection {
        lease_duration: Duration::from_mins(2),
        renew_deadline: Duration::from_mins(1),
        ..shipped.clone()
    };
    let without = LeaderElection {
        enabled: false,
        ..shipped.clone()
    };
    for (election, limit) in [
        (&shipped, CONNECT_TIMEOUT),
        (&long, CONNECT_TIMEOUT),
        (&without, CONNECT_TIMEOUT),
        (&shipped, shipped.call_timeout()),
        (&long, long.call_timeout()),
    ] {
        let mut kube = KubeConfig::new(format!("http://two:{}", address.port()).parse().unwrap());
        kube.root_cert = Some(Vec::new());
        kube.connect_timeout = Some(limit);
        let resolve =
            service_fn(move |_| async move { Ok::<_, Infallible>([silent, address].into_iter()) });
        let tcp = HttpConnector::new_with_resolver(resolve);
        let transport = transport_by(
            tcp,
            &kube,
            credentials(),
            election,
            &Connections::new(usize::MAX),
        );
        let client = Client::new(transport.unwrap(), "default");
        let answer = async {
            let (mut connection, _) = server.accept().await.unwrap();
            assert!(connection.read(&mut [0; 4096]).await.unwrap() > 0);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            connection.write_all(answer).await.unwrap();
        };
        let request = client.send(Request::get("/a").body(Body::empty()).unwrap());
        tokio::select! {
            answered = async { tokio::join!(request, answer).0 } => { answered.unwrap(); }
            () = sleep(limit * 2) => panic!("not connected to within {limit:?}"),
        }
    }
}

/// The client checks the term when a write begins, when it is handed to its connection, and when that hands it to the kernel. A
/// check after the end of the term prevents the write.
#[tokio::test]
async fn i2_the_fence_rechecks_until_the_bytes_are_the_kernels() {
    for looks in 1..=3 {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let reads = AtomicU64::new(0);
        let lasts = Duration::from_secs(10);
        let clock = Clock::from_fn(move || lasts * u32::from(reads.fetch_add(1, SeqCst) >= looks));
        let term = Term::new(1, 0, lasts, clock);
        let client = client(&server, &Config::shipped(&APP).leader_election, term);
        let write = Request::post("/apis/apps/v1/namespaces/n/deployments");
        let write = client.send(write.body(Body::from(b"{}".to_vec())).unwrap());
        let is_sent = async {
            let (mut connection, _) = server.accept().await.unwrap();
            let is_sent = connection.read(&mut [0]).await.unwrap() == 1;
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            _ = connection.write_all(answer).await;
            is_sent
        };
        let (answer, is_sent) = tokio::join!(write, is_sent);
        assert_eq!(is_sent, looks == 3, "{looks} looks before the term's end");
        let is_refused = answer.is_err_and(|error| is_refused(&error));
        assert_eq!(is_refused, !is_sent, "{looks} looks before the term's end");
    }
}

/// A connection that has sent a write also sends reads after the term.
#[tokio::test]
async fn i2_a_read_needs_no_term_on_the_connection_of_a_write() {
    let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let over = Arc::new(AtomicU64::new(0));
    let now = Arc::clone(&over);
    let clock = Clock::from_fn(move || Duration::from_secs(now.load(SeqCst)));
    let term = Term::new(1, 0, Duration::from_secs(10), clock);
    let client = client(&server, &Config::shipped(&APP).leader_election, term);
    let requests = async {
        for request in [Request::post("/a"), Request::get("/b")] {
            let answer = client.send(request.body(Body::from(b"{}".to_vec())).unwrap());
            answer.await.unwrap().into_body().collect().await.unwrap();
            over.store(10, SeqCst);
        }
    };
    let answers = async {
        let (mut connection, _) = server.accept().await.unwrap();
        for _ in 0..2 {
            let mut request = Vec::new();
            while !request.ends_with(b"{}") {
                connection.read_buf(&mut request).await.unwrap();
            }
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            connection.write_all(answer).await.unwrap();
        }
    };
    tokio::join!(requests, answers);
}

/// A pod in an IPv6 cluster whose service account has only a projected token.
#[test]
fn a_pod_needs_an_address_and_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let set = |names: &[(&str, &str)]| {
        let all = names
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        in_cluster(&Host::for_tests(all), folder.path())
    };
    let address = [
        ("KUBERNETES_SERVICE_HOST", "fd00::1"),
        ("KUBERNETES_SERVICE_PORT", "443"),
        ("POD_NAMESPACE", "of-variable"),
    ];
    let error = set(&address[..1]).err().unwrap().to_string();
    assert!(
        error.contains("KUBERNETES_SERVICE_PORT is not set"),
        "{error}"
    );
    let error = set(&address).err().unwrap().to_string();
    assert!(error.contains("automountServiceAccountToken"), "{error}");
    fs::write(folder.path().join("token"), "t").unwrap();
    let kube = set(&address).unwrap();
    assert_eq!(kube.cluster_url, "https://[fd00::1]:443/");
    assert_eq!(kube.default_namespace, "of-variable");
    assert_eq!(kube.root_cert_file, None);
    assert_eq!(set(&address[..2]).unwrap().default_namespace, "default");
    fs::write(folder.path().join("namespace"), "of-account\n").unwrap();
    fs::write(folder.path().join("ca.crt"), "").unwrap();
    let kube = set(&address).unwrap();
    assert_eq!(kube.default_namespace, "of-account");
    assert_eq!(kube.root_cert_file, Some(folder.path().join("ca.crt")));
}

#[test]
fn h17_the_namespace_is_configured_and_never_guessed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = folder.path().join("namespace");
        fs::write(&path, text).unwrap();
        path
    };
    let of_account = file("of-account\n");
    for (variable, service_account, namespace) in [
        (Some("of-variable"), Some(&of_account), Some("of-variable")),
        (Some("of-variable"), None, Some("of-variable")),
        (None, Some(&of_account), Some("of-account")),
        (None, Some(&folder.path().join("missing")), None),
        (None, None, None),
    ] {
        let variable = variable.map(str::to_owned);
        let found = first_namespace(variable, service_account.map(|path| &**path));
        assert_eq!(found.as_deref(), namespace);
    }
    assert_eq!(first_namespace(None, Some(&file(" \n"))), None);
}
