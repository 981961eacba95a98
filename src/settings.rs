//! The shipped configuration, and what README says of it, against the rules that it is checked by.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{net::Ipv6Addr, time::Duration};

use operator_runtime::{
    config::{
        self, Backoff, Config, Http, LeaderElection, Log, LogFormat, Rule, Telemetry, Variable,
    },
    telemetry::auth::Refusal,
};

use crate::APP;

/// The numbers of rows Q2, Q3 and Q4, and client-go's for the Lease.
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
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        },
        http: Http {
            addr: Some((Ipv6Addr::UNSPECIFIED, 8080).into()),
            metrics_auth: false,
            metrics_addr: (Ipv6Addr::UNSPECIFIED, 8443).into(),
            metrics_cert_dir: None,
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

/// README's table has a row for every key, with its flag, its variable, its default and its meaning.
#[test]
fn readme_lists_every_key() {
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let rows: Vec<String> = config::keys(&APP)
        .map(|key| {
            let (name, flag, default) = (key.name, key.flag, config::default_of(&APP, key));
            let default = if default.is_empty() {
                String::new()
            } else {
                format!("`{default}`")
            };
            format!(
                "| `{name}` | `--{flag}` | `{}` | {default} | {} |",
                key.variable(&APP),
                key.meaning()
            )
        })
        .collect();
    let missing: Vec<&String> = rows.iter().filter(|row| !readme.contains(*row)).collect();
    assert!(
        missing.is_empty(),
        "README.md lacks these rows:\n{}",
        rows.join("\n")
    );
}

/// The README lists every variable of OpenTelemetry's with what it may be, and no other.
#[test]
fn readme_lists_every_variable() {
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let row = |row: &Variable| {
        let rule = match row.rule {
            Rule::Address => "an address".to_owned(),
            ref rule => rule.to_string(),
        };
        format!("| `{}` | {rule} | ", row.name)
    };
    let expected: Vec<String> = config::variables().map(row).collect();
    let rows = readme.lines().filter(|line| line.starts_with("| `OTEL_"));
    let found: Vec<&str> = rows
        .map(|line| &line[..line.match_indices(" | ").nth(1).unwrap().0 + 3])
        .collect();
    assert_eq!(found, expected);
}

/// README names each code that is answered instead of metrics, and no other.
#[test]
fn readme_names_every_code() {
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let (_, about) = readme.split_once("(SubjectAccessReview): ").unwrap();
    let (about, _) = about.split_once(". A yes").unwrap();
    let words = about.split(|c: char| !c.is_ascii_digit());
    let mut named: Vec<_> = words.filter(|word| word.len() == 3).collect();
    named.sort_unstable();
    let codes = [
        Refusal::InvalidToken,
        Refusal::NotAllowed(String::new(), APP.name),
        Refusal::MayNotAsk,
        Refusal::NoAnswer,
    ];
    assert_eq!(
        named,
        codes.map(|refusal| refusal.status().as_str().to_owned())
    );
}
