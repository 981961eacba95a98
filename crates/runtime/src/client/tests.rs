#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Instant,
};

#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::{
    io::AsyncReadExt as _,
    net::TcpListener,
    time::{sleep, timeout},
};

use super::*;
use crate::app::tests::APP;
use crate::election::{Clock, fence::is_refused};

/// Many times what the kernel is given, and less than it takes by itself.
const LONG: Duration = Duration::from_secs(10);

/// Hazard H19: an API server takes nothing of what a leader sends until its term is over, and then all of it. Without an
/// election the kernel goes on sending, though the request was given up and its connection closed long since.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn h19_what_was_not_delivered_in_its_time_never_is() {
    for enabled in [true, false] {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        // Room for a part of the body in the server's kernel; the client's has room for the rest.
        SockRef::from(&server).set_recv_buffer_size(1).unwrap();
        let body = [b'{'; 16 << 10];
        let election = LeaderElection {
            enabled,
            lease_duration: Duration::from_secs(2),
            renew_deadline: Duration::from_secs(1),
            ..Config::shipped(&APP).leader_election
        };
        let mut lasts = Duration::from_millis(50);
        let (mut connection, sender) = loop {
            lasts *= 2;
            let start = Instant::now();
            let clock = Clock::from_fn(move || start.elapsed());
            let client = client(&server, &election, Term::new(1, 0, lasts, clock));
            let write = Request::post("/apis/apps/v1/namespaces/n/deployments");
            let write = client.send(write.body(Body::from(body.to_vec())).unwrap());
            let (answer, accepted) = tokio::join!(write, server.accept());
            assert!(answer.is_err());
            let (connection, sender) = accepted.unwrap();
            // On a busy machine a term can be over before anything was sent.
            let sent = timeout(Duration::from_millis(100), connection.peek(&mut [0])).await;
            if matches!(sent, Ok(Ok(1..))) {
                break (connection, sender);
            }
            assert!(lasts < LONG, "nothing is sent");
        };
        let exists = || {
            let sockets = procfs::net::tcp().unwrap();
            sockets.iter().any(|socket| socket.local_address == sender)
        };
        if enabled {
            let given_up = async {
                while exists() {
                    sleep(Duration::from_millis(10)).await;
                }
            };
            let given_up = timeout(LONG, given_up).await;
            given_up.expect("the kernel goes on sending");
        }
        // To the connection's end, which is an error where the sender's kernel gave it up.
        let mut delivered = Vec::new();
        let read = timeout(LONG, connection.read_to_end(&mut delivered)).await;
        let whole = delivered.ends_with(&body);
        assert_eq!(whole, !enabled, "{} bytes, {read:?}", delivered.len());
    }
}

fn client(server: &TcpListener, election: &LeaderElection, term: Term) -> Client {
    let address = server.local_addr().unwrap();
    let mut kube = KubeConfig::new(format!("http://{address}").parse().unwrap());
    kube.root_cert = Some(Vec::new()); // As `config` has it.
    let term = watch::channel(Some(term)).1;
    let cluster = Cluster {
        server: kube.cluster_url.clone(),
        namespace: "default".to_owned(),
        requests: transport(&kube, None, election).unwrap(),
        lease: lease_transport(kube, election).unwrap(),
        pod_namespace: None,
    };
    let (client, ..) = cluster.fenced(term, &Metrics::disconnected(&APP));
    client
}

/// Invariant I2: the controller's client has both halves of the fence. The term is live when the write begins, and over
/// when it is handed to its connection.
#[tokio::test]
async fn i2_the_fence_rechecks_before_sending() {
    let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let reads = AtomicU64::new(0);
    let clock = Clock::from_fn(move || Duration::from_secs(10 * reads.fetch_add(1, SeqCst)));
    let term = Term::new(1, 0, Duration::from_secs(10), clock);
    let client = client(&server, &Config::shipped(&APP).leader_election, term);
    let write = Request::post("/apis/apps/v1/namespaces/n/deployments");
    let write = client.send(write.body(Body::from(b"{}".to_vec())).unwrap());
    let sent = async {
        let (mut connection, _) = server.accept().await.unwrap();
        connection.read(&mut [0]).await.unwrap()
    };
    let (answer, sent) = tokio::join!(write, sent);
    assert!(is_refused(&answer.unwrap_err()));
    assert_eq!(sent, 0);
}
