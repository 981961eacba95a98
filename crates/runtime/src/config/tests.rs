//! Odd input, which `tests/process/cli.rs` cannot test from outside.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsString;
use std::time::Duration;

use proptest::prelude::*;

use super::{
    Key, Rule,
    app::App,
    settings::{Config, LeaderElection},
    sources::Settings,
    table::KEYS,
};
use crate::config::app::tests::APP;

fn variable(key: &Key) -> String {
    key.variable(&APP)
}

/// Example values, with the resulting `TCP_USER_TIMEOUT` in milliseconds. `client/fence/tests.rs` tests all values.
#[test]
fn h19_a_lease_shorter_than_a_late_write_is_rejected() {
    for (lease_duration, renew_deadline, retry_period, send_timeout) in [
        ("15s", "10s", "2s", Some(1200)),
        ("60s", "40s", "5s", Some(6000)),
        ("137s", "107s", "26s", Some(9200)),
        ("13s", "10s", "2s", Some(560)),
        ("3s", "2s", "500ms", Some(80)),
        ("2s", "1s", "500ms", Some(80)),
        ("2s", "1295ms", "500ms", Some(80)),
        ("1s", "297ms", "100ms", Some(80)),
        ("1s", "298ms", "100ms", None),
        ("1s", "590ms", "200ms", None),
        ("2s", "1296ms", "500ms", None),
        ("15s", "14300ms", "2s", None),
        ("15s", "14999ms", "2s", None),
        ("3600s", "3592s", "2s", Some(2160)),
        ("3600s", "3593s", "2s", None),
    ] {
        let mut settings = Settings::defaults(&APP);
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
        ..Config::shipped(&APP).leader_election
    };
    assert_eq!(alone.send_timeout(), None);
}

/// The defaults of an election without a configuration file are those of the shipped configuration.
#[test]
fn the_settings_of_an_election_alone_are_the_defaults() {
    let shipped = Config::shipped(&APP).leader_election;
    assert_eq!(LeaderElection::new(APP.name), shipped);
    for wrong in [
        LeaderElection::new("My Lease"),
        LeaderElection {
            retry_period: Duration::from_secs(9),
            ..shipped.clone()
        },
        LeaderElection {
            retry_period: Duration::ZERO,
            ..shipped.clone()
        },
        LeaderElection {
            lease_duration: Duration::from_millis(15_500),
            ..shipped
        },
    ] {
        assert!(wrong.check().is_err(), "{wrong:?}");
    }
}

#[test]
#[should_panic(expected = "App::name must be")]
fn an_application_name_that_is_no_metric_prefix_is_rejected() {
    static DIGIT: App = App::new("3scale-operator", "1.2.3", "example.com");
    let _ = Config::shipped(&DIGIT);
}

/// Two installations never have the same Lease. Other names of the Lease stay possible.
#[test]
fn the_lease_has_the_installation_as_its_suffix() {
    let checked = |text: &str| {
        let mut settings = Settings::defaults(&APP);
        settings.toml(text, &|_| "here".to_owned());
        settings.check()
    };
    let name = |text: &str| {
        checked(text).map(|config| {
            let election = config.leader_election;
            [election.lease_name.clone(), election.record_name()]
        })
    };
    let usual = ["some-operator", "some-operator-fencing"].map(str::to_owned);
    assert_eq!(name(""), Ok(usual.clone()));
    assert_eq!(name("installation = ''"), Ok(usual));
    let canary = ["some-operator-canary", "some-operator-canary-fencing"].map(str::to_owned);
    assert_eq!(name("installation = 'canary'"), Ok(canary));
    let named =
        "installation = 'b'\nleader_election = { lease_name = 'my.lease', fencing_record = 'r' }";
    assert_eq!(name(named), Ok(["my.lease-b", "r"].map(str::to_owned)));
    let long = |length| {
        let name = "l".repeat(length);
        checked(&format!(
            "installation = 'canary'\nleader_election.lease_name = '{name}'"
        ))
    };
    assert!(long(246).is_ok());
    let wrong = long(247).expect_err("an error").to_string();
    assert!(wrong.ends_with(
        "lll\" (here): must be shorter: with a hyphen and installation = \"canary\" (here), the name of the Lease has more than \
         253 characters"
    ), "{wrong}");
    for value in ["Canary", "a_b", "a.b", "-a", "a-", &"a".repeat(64)] {
        let wrong = checked(&format!("installation = '{value}'")).expect_err("an error");
        let expected = format!(
            "installation = {value:?} (here): must be empty or a DNS-1123 label (a-z, 0-9 and inner -,"
        );
        assert!(wrong.to_string().starts_with(&expected), "{wrong}");
    }
}

/// Holds for any order of an application's keys and any sections, except for secrets.
#[test]
fn printed_settings_can_be_parsed_again() {
    const ONE: Rule = Rule::Whole(1, 5);
    static KEYS: &[Key] = &[
        Key {
            name: "greeter.most",
            ..Key::new("most", "N", ONE, "")
        },
        Key::new("password", "WORD", Rule::Secret(|_| true, "a password"), ""),
        Key {
            name: "other.most",
            ..Key::new("other", "N", ONE, "")
        },
        Key {
            name: "greeter.least",
            ..Key::new("least", "N", ONE, "")
        },
    ];
    static GREETER: App = App {
        keys: KEYS,
        defaults: "greeter = { least = 1, most = 3 }\nother.most = 3\npassword = ''",
        ..APP
    };
    let mut settings = Settings::defaults(&GREETER);
    let set =
        "greeter = { least = 2, most = 4 }\nother.most = 5\npassword = 'hunter2'\nworkers = 7";
    settings.toml(set, &|_| "here".to_owned());
    let printed = settings.to_string();
    assert!(!printed.contains("hunter2"), "{printed}");
    let mut again = Settings::defaults(&GREETER);
    again.toml(&printed, &|line| format!("line {line}"));
    assert_eq!(again.check().unwrap(), settings.check().unwrap());
    let read: Vec<String> = KEYS.iter().map(|key| again.plain(key)).collect();
    assert_eq!(read, ["4", "", "5", "2"], "{printed}");
}

static TWO: App = App {
    controllers: crate::controllers!["database", "class-x"],
    ..APP
};

/// Returns the settings of these sources, from the lowest to the highest.
fn two(file: &str, env: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::defaults(&TWO);
    settings.toml(file, &|line| format!("line {line}"));
    let pairs = env
        .iter()
        .map(|(name, text)| (OsString::from(name), OsString::from(text)));
    settings.env(pairs);
    settings
}

#[test]
fn a_controller_has_its_own_settings_or_those_of_the_program() {
    let file = "workers = 4\n[controllers.database]\nresync = '1h'";
    let settings = two(
        file,
        &[("SOME_OPERATOR__CONTROLLERS__CLASS-X__WORKERS", "9")],
    );
    let config = settings.check().unwrap();
    let of = |name| {
        let config = config.of_controller(name);
        (config.workers, config.resync.as_secs())
    };
    assert_eq!(of("database"), (4, 3600));
    assert_eq!(of("class-x"), (9, 30));
    assert_eq!(of("other"), (4, 30));
    assert!(
        !settings.line().contains("database.workers"),
        "{}",
        settings.line()
    );

    let printed = settings.to_string();
    assert!(
        printed.contains("# database.workers is not set: workers is used"),
        "{printed}"
    );
    assert_eq!(two(&printed, &[]).check().unwrap(), config, "{printed}");
}

#[test]
fn a_wrong_setting_of_a_controller_is_reported_once() {
    let errors = |file| two(file, &[]).check().unwrap_err().to_string();
    assert_eq!(
        errors("workers = 0"),
        "workers = 0 (line 1): must be a whole number from 1 to 1000"
    );
    assert_eq!(
        errors("controllers.database.workers = 0"),
        "controllers.database.workers = 0 (line 1): must be a whole number from 1 to 1000"
    );
    assert_eq!(
        errors("controllers.databases.workers = 1"),
        "controllers.databases (line 1): unknown key; valid keys: database, class-x"
    );
}

/// Arbitrary text, or text similar to a valid value.
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
    /// Any value is accepted, or rejected in one line. The printed TOML of an accepted value has the same meaning.
    #[test]
    fn any_value_is_accepted_or_rejected(index in 0..KEYS.len(), text in text()) {
        let mut settings = Settings::defaults(&APP);
        settings.env([(OsString::from(variable(&KEYS[index])), OsString::from(text))]);
        match settings.check() {
            Err(problems) => {
                let name = format!("{} = ", KEYS[index].name);
                prop_assert!(problems.lines().any(|line| line.contains(&name)), "{problems}");
                prop_assert!(problems.lines().all(|line| !line.contains(char::is_control)));
            }
            Ok(config) => {
                let mut again = Settings::defaults(&APP);
                again.toml(&settings.to_string(), &|line| format!("line {line}"));
                prop_assert_eq!(again.check(), Ok(config));
            }
        }
    }

    /// Any file is accepted, or rejected with one line per error.
    #[test]
    fn any_file_is_accepted_or_rejected(
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
        let mut settings = Settings::defaults(&APP);
        settings.toml(&text, &|line| format!("line {line}"));
        if let Err(problems) = settings.check() {
            prop_assert!(problems.lines().all(|line| !line.contains(char::is_control)));
        }
    }
}
