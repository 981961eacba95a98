//! What `tests/cli.rs` cannot see from outside: the defaults, the texts that go with each key, and odd input.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsString;
use std::net::Ipv6Addr;
use std::time::Duration;

use proptest::prelude::*;

use super::keys::{ENV_PREFIX, KEYS, Key};
use super::layers::SHIPPED;
use super::{Backoff, Config, Http, LeaderElection, Log, LogFormat, Settings, Telemetry};

/// The numbers of rows Q2, Q3 and Q4, and client-go's for the Lease.
#[test]
fn defaults_are_those_of_the_reference() {
    let expected = Config {
        resync: Duration::from_secs(30),
        workers: 2,
        namespaces: vec![],
        image: "nginx:latest".to_owned(),
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
    assert_eq!(Config::default(), expected);
}

/// Hazard H19: with these values, and in milliseconds the kernel's limit that they make; `src/election/fence.rs` has the rule
/// over all values.
#[test]
fn h19_a_lease_that_a_late_write_outlives_is_refused() {
    for (lease_duration, renew_deadline, retry_period, send_timeout) in [
        ("15s", "10s", "2s", Some(2500)),
        ("60s", "40s", "5s", Some(10_000)),
        ("137s", "107s", "26s", Some(15_000)),
        ("13s", "10s", "2s", Some(1500)),
        ("3s", "2s", "500ms", Some(500)),
        ("2s", "1s", "500ms", Some(500)),
        ("1s", "590ms", "200ms", Some(205)),
        ("1s", "600ms", "200ms", None),
        ("2s", "1600ms", "500ms", None),
        ("15s", "12500ms", "2s", None),
        ("15s", "14999ms", "2s", None),
        ("3600s", "3598s", "2s", None),
    ] {
        let mut settings = Settings::defaults();
        let text = format!(
            "leader_election = {{ lease_duration = '{lease_duration}', renew_deadline = '{renew_deadline}', \
             retry_period = '{retry_period}' }}"
        );
        settings.toml(&text, &|_| "here".to_owned());
        let limit = settings
            .check()
            .map(|config| config.leader_election.send_timeout().unwrap())
            .ok();
        assert_eq!(limit, send_timeout.map(Duration::from_millis), "{text}");
    }
    let alone = LeaderElection {
        enabled: false,
        ..Config::default().leader_election
    };
    assert_eq!(alone.send_timeout(), None);
}

/// The shipped file has every key, in the order of the table, each under a comment that says what `--help` says.
#[test]
fn shipped_file_explains_every_key() {
    let (mut section, mut comment, mut found) = (String::new(), vec![], vec![]);
    for line in SHIPPED.lines() {
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
    let expected: Vec<_> = KEYS
        .iter()
        .map(|key| (key.name.to_owned(), key.meaning()))
        .collect();
    assert_eq!(found, expected);
}

/// README's table has a row for every key, with its flag, its variable, its default and its meaning.
#[test]
fn readme_lists_every_key() {
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let defaults = Settings::defaults();
    let rows: Vec<String> = KEYS
        .iter()
        .map(|key| {
            let (name, flag, default) = (key.name, key.flag, defaults.plain(key));
            let default = if default.is_empty() {
                String::new()
            } else {
                format!("`{default}`")
            };
            format!(
                "| `{name}` | `--{flag}` | `{}` | {default} | {} |",
                variable(key),
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

fn variable(key: &Key) -> String {
    format!("{ENV_PREFIX}{}", key.name.to_uppercase().replace('.', "__"))
}

/// Text that is sometimes a likely value and sometimes anything.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[0-9.]{1,6}(ms|s|m|h|d|y)?",
        "-?[0-9]{1,40}(\\.[0-9]*)?(e[0-9]{1,4})?",
        "\\[?[a-z0-9,\"-]{0,20}\\]?",
        "https?://[a-z@:/?#\\[\\].0-9-]{0,20}",
        "[a-z_:]{0,8}(\\[[a-z{}=,]{0,8}\\])?=?(info|[a-z]{0,5})",
    ]
}

proptest! {
    /// Whatever a value is, it is taken or refused in one line; what is taken prints as TOML that means the same.
    #[test]
    fn any_text_is_taken_or_refused(index in 0..KEYS.len(), text in text()) {
        let mut settings = Settings::defaults();
        settings.env([(OsString::from(variable(&KEYS[index])), OsString::from(text))]);
        match settings.check() {
            Err(problems) => {
                let name = format!("{} = ", KEYS[index].name);
                prop_assert!(problems.lines().any(|line| line.contains(&name)), "{problems}");
                prop_assert!(problems.lines().all(|line| !line.contains(char::is_control)));
            }
            Ok(config) => {
                let mut again = Settings::defaults();
                again.toml(&settings.to_string(), &|line| format!("line {line}"));
                prop_assert_eq!(again.check(), Ok(config));
            }
        }
    }

    /// Whatever stands in a file, it is taken or refused, each complaint in one line.
    #[test]
    fn any_file_is_taken_or_refused(
        lines in prop::collection::vec(
            (
                prop::sample::select(vec![
                    "", "[backoff]\n", "[log]\n", "x", "log = ", "workers = ", "resync = ", "backoff.max = ", "http = { addr = ",
                    "namespaces = ",
                ]),
                prop_oneof![any::<String>(), "[0-9\"'\\[\\]{}=., a-z-]{0,12}"],
            ),
            0..4,
        )
    ) {
        let lines: Vec<String> = lines.into_iter().map(|(start, rest)| start.to_owned() + &rest).collect();
        let text = lines.join("\n");
        let mut settings = Settings::defaults();
        settings.toml(&text, &|line| format!("line {line}"));
        if let Err(problems) = settings.check() {
            prop_assert!(problems.lines().all(|line| !line.contains(char::is_control)));
        }
    }
}
