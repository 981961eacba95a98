//! The processes of the replicas.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use operator_testkit::{
    cluster::{Cluster, as_pod},
    proxy::Proxy,
};
use tempfile::NamedTempFile;

use super::{Clock, Options, Program};
use crate::support::{controller::Controller, fencing};

/// Returns a UID that no other pod of this machine has. A process with the identity of another one exits, also if they belong to
/// different control planes: with fencing, all have the same namespace and Lease.
pub fn new_pod() -> usize {
    static PODS: AtomicUsize = AtomicUsize::new(0);
    let process = usize::try_from(std::process::id()).unwrap();
    process * 1_000 + PODS.fetch_add(1, Ordering::Relaxed)
}

pub fn spawn(
    options: &Options,
    cluster: &Cluster,
    [namespace, lease_namespace]: [&str; 2],
    (user, pod): (&str, usize),
    (proxy, clock): (Option<&Proxy>, Option<&NamedTempFile>),
) -> Controller {
    if options.fencing {
        // As with a token that is bound to the pod.
        let pod = as_pod(fencing::ACCOUNT, user, &pod.to_string());
        proxy.unwrap().impersonate(pod);
    }
    let pace = options.pace;
    let time = |key: &str, duration: Duration| {
        let key = format!("FOO_CONTROLLER__LEADER_ELECTION__{key}");
        (key, format!("{}ms", duration.as_millis()))
    };
    let setup = |command: &mut Command| {
        command
            .env("KUBECONFIG", cluster.kubeconfig_of(user))
            .env("POD_NAME", user)
            .env("POD_UID", pod.to_string())
            .env("POD_NAMESPACE", lease_namespace)
            .env("FOO_CONTROLLER__NAMESPACES", namespace)
            .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "true")
            .envs([
                time("LEASE_DURATION", pace.lease),
                time("RENEW_DEADLINE", pace.renew),
                time("RETRY_PERIOD", pace.retry),
            ])
            .envs(proxy.map(|proxy| ("FOO_CONTROLLER__MASTER", proxy.url())))
            .envs((options.fencing).then_some((
                "FOO_CONTROLLER__LEADER_ELECTION__FENCING_RECORD",
                fencing::RECORD,
            )));
        if let Some(clock) = clock {
            command
                .env("LD_PRELOAD", libfaketime())
                .env("FAKETIME_TIMESTAMP_FILE", clock.path())
                // 0 reads the file every second. 1 reads it every two seconds, in step with a clock that jumps as often.
                .env("FAKETIME_CACHE_DURATION", "0");
        }
        if matches!(options.clock, Clock::Wall(_)) {
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
    };
    match options.program {
        Program::Shipped => Controller::spawn(setup),
        Program::Unfenced => {
            let this = std::env::current_exe().unwrap();
            Controller::spawn_program(this, |command| {
                setup(command);
                let key = "FOO_CONTROLLER__LEADER_ELECTION__LEASE_NAMESPACE";
                command.env(key, lease_namespace);
                let only = [
                    "--exact",
                    "leadership::replicas::a_replica_without_the_fence",
                ];
                command.args(only).args(["--ignored", "--nocapture"]);
            })
        }
    }
}

/// Returns the path of Debian's libfaketime.
fn libfaketime() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").unwrap();
    let files = folders.map(|folder| folder.unwrap().path().join("faketime/libfaketimeMT.so.1"));
    let mut files = files.filter(|file| file.exists());
    files.next().expect("libfaketime is not installed")
}
