//! File descriptors: every watch of a namespace has its own connection, and probes of the kubelet need descriptors as well.

use std::{net::SocketAddr, time::Duration};

use operator_testkit::cluster::{Cluster, eventually};
use rustix::process::{Resource, getrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use crate::support::{
    controller::Controller,
    foos::{DEADLINE, audited, converged, create, names},
};

/// Default timeout of a kubelet probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts the controller with the given soft and hard limits.
fn start(cluster: &Cluster, soft: u64, hard: u64, args: &[String]) -> Controller {
    let maximum = getrlimit(Resource::Nofile).maximum;
    assert!(maximum.is_none_or(|maximum| maximum >= hard), "{maximum:?}");
    let limits = format!(r#"ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$0" "$@""#);
    Controller::spawn_program("sh", |command| {
        command.args(["-c", &limits, env!("CARGO_BIN_EXE_foo-controller")]);
        command.args(args).env("KUBECONFIG", cluster.kubeconfig());
    })
}

fn of(namespaces: &[String]) -> Vec<String> {
    let flags = namespaces.iter().map(|name| format!("--namespace={name}"));
    flags.collect()
}

async fn get(addr: SocketAddr, path: &str) -> String {
    let answer = async {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = timeout(PROBE_TIMEOUT, answer).await;
    answer.unwrap_or_else(|_| panic!("no answer from {path} in {PROBE_TIMEOUT:?}"))
}

async fn assert_alive(addr: SocketAddr) {
    let answer = get(addr, "/livez").await;
    assert!(answer.contains(" 200 "), "{answer}");
}

/// The controller raises the soft limit to the hard limit.
#[tokio::test(flavor = "multi_thread")]
async fn more_namespaces_are_watched_than_the_soft_limit_allows() {
    let cluster = audited().await;
    let namespaces = names("many", 100);
    let controller = start(cluster, 128, 1024, &of(&namespaces));
    let addr = controller.http_addr().await;
    eventually(DEADLINE, "all namespaces are served", async || {
        let answer = get(addr, "/readyz?verbose").await;
        let all = answer.contains("informer-sync ok\n");
        if all { Ok(()) } else { Err(answer) }
    })
    .await;
    let metrics = get(addr, "/metrics").await;
    assert!(metrics.contains("\nprocess_max_fds 1024\n"), "{metrics}");
}

/// If the hard limit is too low, the controller serves some namespaces and logs a warning that names the others. Probes succeed
/// all the time.
#[tokio::test(flavor = "multi_thread")]
async fn probes_succeed_if_the_limit_is_too_low_for_all_namespaces() {
    let cluster = audited().await;
    let client = cluster.client().await;
    // First by name, so that it is served.
    let namespace = cluster.namespace("a").await;
    let mut namespaces = names("too-many", 2000);
    namespaces.push(namespace.clone());
    let controller = start(cluster, 128, 256, &of(&namespaces));
    let addr = controller.http_addr().await;
    let foos = names("foo", 3);
    let work = async {
        create(&client, &namespace, &foos).await;
        converged(&client, &namespace, &foos).await;
    };
    let probes = async {
        loop {
            assert_alive(addr).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = probes => {}
    }
    let warning = controller.wait_for_log(" namespaces need ").await;
    println!("{warning}");
    assert!(warning.contains("2001 namespaces need 4002 connections"));
    assert!(warning.contains("may open 256 files"));
    let ready = get(addr, "/readyz?verbose").await;
    let unserved = "too few file descriptors to watch namespace too-many-1999";
    assert!(
        ready.contains("[+]informer-sync ok") && ready.contains(unserved),
        "{ready}"
    );
    assert_eq!(controller.logged("Too many open files"), 0);
}

/// Idle clients cannot use up the descriptors either.
#[tokio::test(flavor = "multi_thread")]
async fn probes_succeed_while_idle_clients_use_all_descriptors() {
    const LIMIT: u64 = 64;
    let cluster = audited().await;
    let namespace = cluster.namespace("crowd").await;
    let controller = start(cluster, LIMIT, LIMIT, &of(&[namespace]));
    let addr = controller.http_addr().await;
    let mut crowd = Vec::new();
    for _ in 0..LIMIT * 2 {
        let socket = TcpSocket::new_v4().unwrap();
        // Not the address that the probes come from.
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        crowd.push(socket.connect(addr).await.unwrap());
        assert_alive(addr).await;
    }
    assert!(controller.logged("cannot accept a connection") <= 1);
}
