//! The shipped configuration, against the rules that it is checked by.

use std::{net::Ipv6Addr, time::Duration};

use operator_runtime::config::{
    self, Backoff, Config, Http, LeaderElection, Log, LogFormat, Telemetry,
};

use crate::APP;

/// How many at once, how often and how soon again; and client-go's for the Lease.
#[test]
fn defaults_are_those_of_the_reference() {
    let expected = Config {
        resync: Duration::from_secs(30),
        workers: 2,
        namespaces: vec![],
        shutdown_timeout: Duration::from_secs(20),
        kubeconfig: None,
        master: None,
        backoff: Backoff {
            initial: Duration::from_millis(5),
            max: Duration::from_secs(1000),
            qps: 50.0,
            burst: 300,
        },
        leader_election: LeaderElection {
            enabled: true,
            lease_name: "foo-controller".to_owned(),
            lease_namespace: None,
            fencing_record: None,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        },
        http: Http {
            addr: Some((Ipv6Addr::UNSPECIFIED, 8080).into()),
            metrics_auth: false,
            metrics_addr: (Ipv6Addr::UNSPECIFIED, 8443).into(),
            metrics_cert_dir: None,
            debug_state: false,
        },
        log: Log {
            level: "info".to_owned(),
            format: LogFormat::Auto,
        },
        telemetry: Telemetry { endpoint: None },
    };
    assert_eq!(Config::shipped(&APP), expected);
}

/// The shipped file has every key, in the order of the table, each under a comment that says what `--help` says.
#[test]
fn shipped_file_explains_every_key() {
    let (mut section, mut comment, mut found) = (String::new(), vec![], vec![]);
    for line in APP.defaults.lines() {
        if let Some(text) = line.strip_prefix("# ") {
            comment.push(text);
        } else if let Some(name) = line.strip_prefix('[') {
            section = name.replace(']', ".");
        } else if let Some((name, _)) = line.split_once(" = ") {
            found.push((format!("{section}{name}"), comment.join(" ")));
            comment.clear();
        } else {
            comment.clear();
        }
    }
    let expected: Vec<_> = config::keys(&APP)
        .map(|key| (key.name.to_owned(), key.meaning()))
        .collect();
    assert_eq!(found, expected);
}
