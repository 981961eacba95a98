//! The command line: rejected input with its messages, and the precedence of the configuration sources.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use operator_testkit::cluster::shared;
use tempfile::TempDir;

/// The program with an empty environment.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foo-controller"));
    command.env_clear().stdin(Stdio::null());
    command
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Returns the output of the `config` command.
fn config(command: &mut Command) -> String {
    let output = command.arg("config").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output).to_owned()
}

/// Writes a file for `--config`.
fn file(dir: &TempDir, text: &str) -> String {
    let path = dir.path().join("foo.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A mistake: its place, and the line that the program prints. `FILE` stands for the path of the file.
enum Bad {
    File(&'static str, &'static str),
    Env(&'static str, &'static str, &'static str),
    Flag(&'static str, &'static str),
}
use Bad::{Env, File, Flag};

#[rustfmt::skip]
const BAD: &[Bad] = &[
    // Unknown keys.
    File("resinc = '5s'", "resinc (file FILE, line 1): unknown key; valid keys: image, max_rollouts, resync, workers, namespaces, installation, shutdown_timeout, kubeconfig, master, backoff, leader_election, http, log, telemetry"),
    File("workers = 3\n\n[backoff]\nmaximum = '5s'", "backoff.maximum (file FILE, line 4): unknown key; valid keys: initial, max, qps, burst"),
    File(r#""a\nb" = 1"#, "a?b (file FILE, line 1): unknown key; valid keys: image, max_rollouts, resync, workers, namespaces, installation, shutdown_timeout, kubeconfig, master, backoff, leader_election, http, log, telemetry"),
    File("[lock]\nname = 'x'", "lock (file FILE, line 1): unknown key; valid keys: image, max_rollouts, resync, workers, namespaces, installation, shutdown_timeout, kubeconfig, master, backoff, leader_election, http, log, telemetry"),
    File("backoff = 5", "backoff (file FILE, line 1): a section, not a key; valid keys: initial, max, qps, burst"),
    Env("FOO_CONTROLLER__HTTP__ADDRESS", "secret", "http.address (environment variable FOO_CONTROLLER__HTTP__ADDRESS): unknown key; valid keys: addr, metrics_auth, metrics_addr, metrics_cert_dir, debug_state"),
    Env("FOO_CONTROLLER__LOG", "info", "log (environment variable FOO_CONTROLLER__LOG): a section, not a key; valid keys: level, format"),
    Env("FOO_CONTROLLER__WORKRES", "4", "workres (environment variable FOO_CONTROLLER__WORKRES): unknown key; valid keys: image, max_rollouts, resync, workers, namespaces, installation, shutdown_timeout, kubeconfig, master, backoff, leader_election, http, log, telemetry"),
    // Wrong types.
    File("workers = '2'", r#"workers = "2" (file FILE, line 1): must be a whole number from 1 to 1000"#),
    File("workers = 2.0", "workers = 2.0 (file FILE, line 1): must be a whole number from 1 to 1000"),
    File("workers = { n = 2 }", "workers = a table (file FILE, line 1): must be a whole number from 1 to 1000"),
    File("\nresync = 30", "resync = 30 (file FILE, line 2): must be a duration from 1s to 24h"),
    File("namespaces = 'a'", r#"namespaces = "a" (file FILE, line 1): must be a list of namespace names (a-z, 0-9 and -, at most 63 characters)"#),
    File("namespaces = [1]", "namespaces = [1] (file FILE, line 1): must be a list of namespace names (a-z, 0-9 and -, at most 63 characters)"),
    File("image = 1.5", "image = 1.5 (file FILE, line 1): must be an image name without blanks, at most 1024 characters"),
    File("[leader_election]\nenabled = 'true'", r#"leader_election.enabled = "true" (file FILE, line 2): must be true or false"#),
    Env("FOO_CONTROLLER__WORKERS", "two", r#"workers = "two" (environment variable FOO_CONTROLLER__WORKERS): must be a whole number from 1 to 1000"#),
    Env("FOO_CONTROLLER__WORKERS", "", r#"workers = "" (environment variable FOO_CONTROLLER__WORKERS): must be a whole number from 1 to 1000"#),
    Flag("--leader-election=maybe", r#"leader_election.enabled = "maybe" (flag --leader-election): must be true or false"#),
    // Out of range.
    Flag("--workers=0", "workers = 0 (flag --workers): must be a whole number from 1 to 1000"),
    Flag("--workers=-1", "workers = -1 (flag --workers): must be a whole number from 1 to 1000"),
    Flag("--workers=4294967298", "workers = 4294967298 (flag --workers): must be a whole number from 1 to 1000"),
    Flag("--resync=0s", r#"resync = "0s" (flag --resync): must be a duration from 1s to 24h"#),
    Flag("--resync=30", r#"resync = "30" (flag --resync): must be a duration from 1s to 24h"#),
    Flag("--resync=1year", r#"resync = "1year" (flag --resync): must be a duration from 1s to 24h"#),
    Flag("--resync=99999999999999999999s", r#"resync = "99999999999999999999s" (flag --resync): must be a duration from 1s to 24h"#),
    Flag("--backoff-initial=0ms", r#"backoff.initial = "0ms" (flag --backoff-initial): must be a duration from 1ms to 1h"#),
    Flag("--backoff-initial=-5ms", r#"backoff.initial = "-5ms" (flag --backoff-initial): must be a duration from 1ms to 1h"#),
    Flag("--backoff-max=25h", r#"backoff.max = "25h" (flag --backoff-max): must be a duration from 1ms to 24h"#),
    Flag("--backoff-qps=0", "backoff.qps = 0 (flag --backoff-qps): must be a number from 0.1 to 100000"),
    Flag("--backoff-qps=NaN", "backoff.qps = nan (flag --backoff-qps): must be a number from 0.1 to 100000"),
    File("backoff.qps = inf", "backoff.qps = inf (file FILE, line 1): must be a number from 0.1 to 100000"),
    Flag("--backoff-burst=0", "backoff.burst = 0 (flag --backoff-burst): must be a whole number from 1 to 100000"),
    Flag("--shutdown-timeout=0s", r#"shutdown_timeout = "0s" (flag --shutdown-timeout): must be a duration from 1s to 1h"#),
    // A Lease stores whole seconds.
    Flag("--lease-duration=900ms", r#"leader_election.lease_duration = "900ms" (flag --lease-duration): must be whole seconds from 1s to 1h"#),
    Flag("--lease-duration=15s 500ms", r#"leader_election.lease_duration = "15s 500ms" (flag --lease-duration): must be whole seconds from 1s to 1h"#),
    Flag("--lease-renew-deadline=0s", r#"leader_election.renew_deadline = "0s" (flag --lease-renew-deadline): must be a duration from 100ms to 1h"#),
    Flag("--lease-retry-period=0s", r#"leader_election.retry_period = "0s" (flag --lease-retry-period): must be a duration from 10ms to 1h"#),
    // Contradictory values.
    Flag("--backoff-initial=30m", r#"backoff.initial = "30m" (flag --backoff-initial): must be at most backoff.max = "1000s" (default)"#),
    Flag("--lease-duration=10s", r#"leader_election.renew_deadline = "10s" (default): must be over 720ms less than leader_election.lease_duration = "10s" (flag --lease-duration)"#),
    // Otherwise the last write of a term could still be in flight when another replica takes the Lease.
    Flag("--lease-renew-deadline=14270ms", r#"leader_election.renew_deadline = "14270ms" (flag --lease-renew-deadline): must be over 730ms less than leader_election.lease_duration = "15s" (default)"#),
    Env("FOO_CONTROLLER__LEADER_ELECTION__RENEW_DEADLINE", "2400ms", r#"leader_election.retry_period = "2s" (default): times 1.2 must be less than leader_election.renew_deadline = "2400ms" (environment variable FOO_CONTROLLER__LEADER_ELECTION__RENEW_DEADLINE)"#),
    // Names and addresses.
    Flag("--namespace=Default", r#"namespaces = ["Default"] (flag --namespace): must be a list of namespace names (a-z, 0-9 and -, at most 63 characters)"#),
    Flag("--namespace=", r#"namespaces = [""] (flag --namespace): must be a list of namespace names (a-z, 0-9 and -, at most 63 characters)"#),
    Env("FOO_CONTROLLER__NAMESPACES", "a,-b", r#"namespaces = ["a", "-b"] (environment variable FOO_CONTROLLER__NAMESPACES): must be a list of namespace names (a-z, 0-9 and -, at most 63 characters)"#),
    Flag("--installation=Canary", r#"installation = "Canary" (flag --installation): must be empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it"#),
    Flag("--lease-name=foo/controller", r#"leader_election.lease_name = "foo/controller" (flag --lease-name): must be lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters)"#),
    Flag("--lease-name=a..b", r#"leader_election.lease_name = "a..b" (flag --lease-name): must be lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters)"#),
    Flag("--lease-namespace=kube_system", r#"leader_election.lease_namespace = "kube_system" (flag --lease-namespace): must be a namespace name (a-z, 0-9 and -, at most 63 characters)"#),
    Flag("--image=", r#"image = "" (flag --image): must be an image name without blanks, at most 1024 characters"#),
    File(r#"image = "a\u007Fb""#, r#"image = "a\u007fb" (file FILE, line 1): must be an image name without blanks, at most 1024 characters"#),
    Env("FOO_CONTROLLER__IMAGE", "nginx\nlatest", r#"image = "nginx\nlatest" (environment variable FOO_CONTROLLER__IMAGE): must be an image name without blanks, at most 1024 characters"#),
    Flag("--http-addr=localhost:8080", r#"http.addr = "localhost:8080" (flag --http-addr): must be an IP address and port such as 0.0.0.0:8080, or [::]:8080 for IPv4 and IPv6"#),
    Flag("--http-addr=0.0.0.0:80800", r#"http.addr = "0.0.0.0:80800" (flag --http-addr): must be an IP address and port such as 0.0.0.0:8080, or [::]:8080 for IPv4 and IPv6"#),
    Flag("--http-metrics-addr=", r#"http.metrics_addr = "" (flag --http-metrics-addr): must be an IP address and port such as 0.0.0.0:8443, or [::]:8443 for IPv4 and IPv6"#),
    Flag("--master=localhost:8080", r#"master = "localhost:8080" (flag --master): must be an http:// or https:// URL with a host, optionally a port and a path, and no credentials or query"#),
    Flag("--master=https://host:port", r#"master = "https://host:port" (flag --master): must be an http:// or https:// URL with a host, optionally a port and a path, and no credentials or query"#),
    Flag("--master=ftp://host", r#"master = "ftp://host" (flag --master): must be an http:// or https:// URL with a host, optionally a port and a path, and no credentials or query"#),
    Flag("--master=https://admin:secret@host", "master = (hidden) (flag --master): must be an http:// or https:// URL with a host, optionally a port and a path, and no credentials or query"),
    Flag("--master=https://host/?token=secret", "master = (hidden) (flag --master): must be an http:// or https:// URL with a host, optionally a port and a path, and no credentials or query"),
    Flag("--otlp-endpoint=collector:4317", r#"telemetry.endpoint = "collector:4317" (flag --otlp-endpoint): must be an http:// or https:// URL with a host, optionally a port and a path, and no credentials or query"#),
    Flag("--otlp-protocol=http/json", r#"telemetry.protocol = "http/json" (flag --otlp-protocol): must be grpc or http/protobuf"#),
    Flag("--otlp-endpoint=http://me:secret@host", "telemetry.endpoint = (hidden) (flag --otlp-endpoint): must be an http:// or https:// URL with a host, optionally a port and a path, and no credentials or query"),
    Flag("--log-level=loud", r#"log.level = "loud" (flag --log-level): must be a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug"#),
    Flag("--log-level=info,kube=loud", r#"log.level = "info,kube=loud" (flag --log-level): must be a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug"#),
    Flag("--log-level=", r#"log.level = "" (flag --log-level): must be a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug"#),
    Flag("--log-format=yaml", r#"log.format = "yaml" (flag --log-format): must be auto, text or json"#),
    // Files.
    Flag("--config=/nowhere/foo.toml", "/nowhere/foo.toml (flag --config): cannot be read: No such file or directory (os error 2)"),
    Flag("--config=/", "/ (flag --config): cannot be read: Is a directory (os error 21)"),
    Env("FOO_CONTROLLER__CONFIG", "/nowhere\n", "/nowhere? (environment variable FOO_CONTROLLER__CONFIG): cannot be read: No such file or directory (os error 2)"),
    File("workers = 1\nworkers = 2", "file FILE, line 2: not TOML: duplicate key"),
    File("workers = ", "file FILE, line 1: not TOML: string values must be quoted, expected literal string"),
];

/// Invalid configuration ends `run` before it contacts a cluster: exit code 2, no standard output, one line of error.
#[test]
fn invalid_configuration_is_rejected_in_one_line() {
    let mut wrong = String::new();
    for bad in BAD {
        let dir = TempDir::new().unwrap();
        let mut command = program();
        let (line, path) = match bad {
            File(text, line) => {
                let path = file(&dir, text);
                command.args(["--config", &path]);
                (line, path)
            }
            Env(name, value, line) => {
                command.env(name, value);
                (line, String::new())
            }
            Flag(flag, line) => {
                command.arg(flag);
                (line, String::new())
            }
        };
        let output = command.output().unwrap();
        let expected = format!("error: {}\n", line.replace("FILE", &path));
        if output.status.code() != Some(2)
            || stderr(&output) != expected
            || !output.stdout.is_empty()
        {
            writeln!(
                wrong,
                "{:?}\n  want {expected}   got {}",
                output.status,
                stderr(&output)
            )
            .unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// All mistakes of all sources are reported together.
#[test]
fn all_errors_are_reported_together() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, "color = 'red'\nimage = ''\n");
    let output = program()
        .args([
            "--config",
            &path,
            "--workers",
            "0",
            "--backoff-initial",
            "30m",
        ])
        .env("FOO_CONTROLLER__RESYNC", "soon")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let keys: Vec<&str> = stderr(&output)
        .lines()
        .map(|line| line.split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(
        keys,
        ["color", "image", "resync", "workers", "backoff.initial"]
    );
}

/// clap reports usage errors, also with exit code 2.
#[test]
fn usage_errors_exit_with_2() {
    for args in [
        &["deploy"][..],
        &["--workres=4"],
        &["--workers"],
        &["config", "extra"],
        &["--config=a", "--config=b"],
    ] {
        let output = program().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            stderr(&output).starts_with("error: "),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(output.stdout.is_empty());
    }
}

/// As a plugin of kubectl, it has the same commands, but does not start a controller without one.
#[test]
fn kubectl_runs_it_as_a_plugin() {
    let folder = TempDir::new().unwrap();
    let program = env!("CARGO_BIN_EXE_foo-controller");
    std::os::unix::fs::symlink(program, folder.path().join("kubectl-foo")).unwrap();
    let kubectl = |args: &[&str]| {
        let mut command = Command::new(shared().ready().bin.join("kubectl"));
        command.args(args).env_clear().env("PATH", folder.path());
        command.output().unwrap()
    };
    let output = kubectl(&["foo", "config"]);
    assert!(stdout(&output).contains("workers = 2"), "{output:?}");
    let output = kubectl(&["foo"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("Usage: kubectl foo [OPTIONS] <COMMAND>"),
        "{}",
        stderr(&output)
    );
    let output = kubectl(&["foo", "doctor", "--help"]);
    assert!(
        stdout(&output).contains("Usage: kubectl foo doctor"),
        "{output:?}"
    );
    // In a pod too, it uses the cluster of kubectl. Outside, the checks that need no namespace of the Lease run.
    let cluster = shared().ready();
    let mut doctor = Command::new(cluster.bin.join("kubectl"));
    let doctor = doctor
        .args(["foo", "doctor"])
        .env_clear()
        .env("PATH", folder.path())
        .env("KUBECONFIG", &cluster.kubeconfig)
        .env("KUBERNETES_SERVICE_HOST", "192.0.2.1")
        .env("KUBERNETES_SERVICE_PORT", "443");
    let output = doctor.output().unwrap();
    let found = stdout(&output);
    let finds = |check: &str, text: &str| {
        let mut lines = found.lines();
        lines.any(|line| line.contains(check) && line.contains(text))
    };
    assert!(
        finds("ok       API server", "https://127.0.0.1:"),
        "{found}"
    );
    let wanted = "no namespace for the Lease, outside a pod: set leader_election.lease_namespace";
    assert!(finds("warning  Lease ", wanted), "{found}");
}

/// Precedence: defaults < file < environment < flags. The origin of each value is printed.
#[test]
fn later_layers_override_earlier_ones() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, "# mine\nworkers = 3\n");
    let says = |line: &str, command: &mut Command| {
        let text = config(command);
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    };
    let mut command = program();
    says("workers = 2  # default", &mut command);
    let mut command = program();
    command.args(["--config", &path]);
    says(&format!("workers = 3  # file {path}, line 2"), &mut command);
    let mut command = program();
    command
        .args(["--config", &path])
        .env("FOO_CONTROLLER__CONFIG", "/nowhere");
    says(&format!("workers = 3  # file {path}, line 2"), &mut command);
    let mut command = program();
    command.env("FOO_CONTROLLER__CONFIG", &path);
    says(&format!("workers = 3  # file {path}, line 2"), &mut command);
    let mut command = program();
    command
        .args(["--config", &path])
        .env("FOO_CONTROLLER__WORKERS", "4");
    says(
        "workers = 4  # environment variable FOO_CONTROLLER__WORKERS",
        &mut command,
    );
    let mut command = program();
    command
        .args(["--config", &path, "--workers", "5"])
        .env("FOO_CONTROLLER__WORKERS", "4");
    says("workers = 5  # flag --workers", &mut command);
}

/// A value that looks like another type is parsed as the type of its key. The variables that the kubelet injects for a Service
/// are ignored.
#[test]
fn environment_values_have_the_type_of_their_key() {
    let text = config(
        program()
            .env("FOO_CONTROLLER__LEADER_ELECTION__LEASE_NAME", "123")
            .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "false")
            .env("FOO_CONTROLLER__IMAGE", "1.5")
            .env("FOO_CONTROLLER__NAMESPACES", "a, b")
            .env("FOO_CONTROLLER__BACKOFF__QPS", "0.5")
            .env("FOO_CONTROLLER_SERVICE_HOST", "10.0.0.1")
            .env("FOO_CONTROLLER_PORT", "tcp://10.0.0.1:80"),
    );
    for line in [
        "lease_name = \"123\"",
        "enabled = false",
        "image = \"1.5\"",
        "namespaces = [\"a\", \"b\"]",
        "qps = 0.5",
    ] {
        assert!(
            text.contains(&format!("{line}  # environment variable FOO_CONTROLLER__")),
            "{line} is not in\n{text}"
        );
    }
    assert!(
        config(program().env("FOO_CONTROLLER__NAMESPACES", "[a,b]"))
            .contains("namespaces = [\"a\", \"b\"]  #")
    );
    assert!(
        config(program().env("FOO_CONTROLLER__NAMESPACES", "[]")).contains("namespaces = []  #")
    );
}

/// Every flag sets its key. `--config` accepts the output of `config`, with the same result.
#[test]
fn printed_configuration_can_be_read_back() {
    let flags = [
        ("--resync=1m 30s", "resync = \"1m 30s\""),
        ("--workers=7", "workers = 7"),
        ("--namespace=a", "namespaces = [\"a\", \"b\"]"),
        ("--namespace=b", "namespaces = [\"a\", \"b\"]"),
        (
            "--image=registry.local/nginx@sha256:00",
            "image = \"registry.local/nginx@sha256:00\"",
        ),
        ("--installation=canary", "installation = \"canary\""),
        ("--shutdown-timeout=5s", "shutdown_timeout = \"5s\""),
        (
            "--kubeconfig=/a \"b\"\\c",
            "kubeconfig = \"/a \\\"b\\\"\\\\c\"",
        ),
        (
            "--master=https://[::1]:6443/k8s",
            "master = \"https://[::1]:6443/k8s\"",
        ),
        ("--backoff-initial=10ms", "initial = \"10ms\""),
        ("--backoff-max=1h", "max = \"1h\""),
        ("--backoff-qps=10", "qps = 10"),
        ("--backoff-burst=20", "burst = 20"),
        ("--leader-election=false", "enabled = false"),
        ("--lease-name=my.lease", "lease_name = \"my.lease\""),
        (
            "--lease-namespace=kube-system",
            "lease_namespace = \"kube-system\"",
        ),
        ("--lease-duration=1m", "lease_duration = \"1m\""),
        ("--lease-renew-deadline=40s", "renew_deadline = \"40s\""),
        ("--lease-retry-period=5s", "retry_period = \"5s\""),
        ("--http-addr=", "addr = \"\""),
        ("--http-metrics-auth", "metrics_auth = true"),
        (
            "--http-metrics-addr=[::1]:8443",
            "metrics_addr = \"[::1]:8443\"",
        ),
        (
            "--http-metrics-cert-dir=/tls",
            "metrics_cert_dir = \"/tls\"",
        ),
        ("--http-debug-state", "debug_state = true"),
        ("--log-level=warn,kube=debug", "level = \"warn,kube=debug\""),
        ("--log-format=json", "format = \"json\""),
        (
            "--otlp-endpoint=http://collector:4317",
            "endpoint = \"http://collector:4317\"",
        ),
        (
            "--otlp-protocol=http/protobuf",
            "protocol = \"http/protobuf\"",
        ),
    ];
    let first = config(program().args(flags.iter().map(|(flag, _)| flag)));
    for (flag, line) in flags {
        let origin = flag.split('=').next().unwrap();
        assert!(
            first.contains(&format!("{line}  # flag {origin}\n")),
            "{line} is not in\n{first}"
        );
    }
    let dir = TempDir::new().unwrap();
    let path = file(&dir, &first);
    assert_eq!(
        values(&first),
        values(&config(program().args(["--config", &path])))
    );
}

/// The shipped file, passed with `--config`, changes nothing.
#[test]
fn shipped_file_is_the_defaults() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/foo-controller.toml");
    assert_eq!(
        values(&config(&mut program())),
        values(&config(program().arg("--config").arg(path)))
    );
}

/// Returns the lines without the origins.
fn values(config: &str) -> Vec<&str> {
    config
        .lines()
        .map(|line| line.split("  # ").next().unwrap())
        .collect()
}

#[test]
fn a_flag_alone_switches_leader_election_on() {
    let mut command = program();
    command
        .env("FOO_CONTROLLER__LEADER_ELECTION__ENABLED", "false")
        .arg("--leader-election");
    assert!(config(&mut command).contains("enabled = true  # flag --leader-election\n"));
}

#[test]
fn help_groups_flags_and_shows_defaults() {
    let output = program().arg("--help").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let help = stdout(&output);
    for text in [
        "\nWork:\n",
        "\nCluster:\n",
        "\nRetries:\n",
        "\nLeader election:\n",
        "\nLogs, health and telemetry:\n",
        "[default: 1000s]",
    ] {
        assert!(help.contains(text), "{text:?} is not in\n{help}");
    }
}

#[test]
fn the_version_is_that_of_the_crate() {
    let output = program().arg("--version").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stdout(&output).starts_with(concat!("foo-controller ", env!("CARGO_PKG_VERSION"))),
        "{}",
        stdout(&output)
    );
}

/// Files that the package installs beside the program (`nix/share`). Each shell loads its completions and offers the commands
/// and flags. man renders the page without a warning.
#[test]
#[ignore = "takes Debian's fish, zsh and man-db"]
fn shells_complete_it_and_man_shows_it() {
    let share = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/nix/share"));
    let home = TempDir::new().unwrap();
    let run = |shell: &str, options: &[&str], script: &str| {
        let output = Command::new(shell)
            .args(options)
            .args(["-c", script])
            .current_dir(share)
            .env("HOME", home.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(stderr(&output), "", "{shell}");
        assert!(output.status.success(), "{shell}: {}", output.status);
        stdout(&output).to_owned()
    };
    for (before, typed, offered) in [
        ("", "do", "doctor\n"),
        ("", "--resy", "--resync\n"),
        ("run", "--resy", "--resync\n"),
        ("doctor", "--lease-nam", "--lease-name --lease-namespace\n"),
        ("help", "do", "doctor\n"),
    ] {
        let bash = format!(
            ". ./completion.bash; function=$(complete -p foo-controller); function=${{function#*-F }}
            COMP_WORDS=(foo-controller {before} {typed}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            ${{function%% *}} foo-controller {typed} foo-controller; echo ${{COMPREPLY[@]}}"
        );
        assert_eq!(run("bash", &["--norc"], &bash), offered);
    }
    let fish = "source completion.fish; complete --do-complete 'foo-controller do'";
    let said = run("fish", &["--no-config"], fish);
    assert!(said.starts_with("doctor\tCheck "), "{said}");
    let fish = "source completion.fish; complete --do-complete 'foo-controller run --resy'";
    let said = run("fish", &["--no-config"], fish);
    assert!(said.starts_with("--resync\t"), "{said}");
    // The completion functions report to the line editor, which needs a terminal. The stub prints their argument instead.
    let zsh = "autoload -U compinit && compinit -u -D; . ./completion.zsh; [ $_comps[foo-controller] = _foo-controller ]
        _describe() { print -l ${(P)4} }; _foo-controller_commands";
    let said = run("zsh", &["--no-rcs"], zsh);
    assert!(said.contains("doctor:Check "), "{said}");

    let man = "man --warnings=w --local-file man.1";
    let page = run("env", &["MANWIDTH=100", "LC_ALL=C.UTF-8", "sh"], man);
    for text in [
        "\n       doctor Check ",
        "\n       --lease-namespace <NAME>",
    ] {
        assert!(page.contains(text), "{text} is not in {page}");
    }
    assert!(!page.contains("(1)\n       "), "another page: {page}");
}

/// Outside its own container, process 1 is another program, and the signal has another meaning there.
#[test]
fn reload_signals_no_other_process() {
    let output = program().arg("reload").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "error: process 1 is not this program: run reload in a container of the controller\n"
    );
}

/// Runs `nix/stamp.sh` on a copy of these bytes. Returns the stamped bytes, or the error message.
fn stamp(program: &[u8], commit: &str) -> Result<Vec<u8>, String> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("program");
    std::fs::write(&path, program).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/nix/stamp.sh");
    let output = Command::new(script).arg(&path).arg(commit).output();
    let output = output.unwrap();
    let stamped = std::fs::read(&path).unwrap();
    if output.status.success() {
        Ok(stamped)
    } else {
        assert!(stamped == program, "a failure changes the program");
        Err(stderr(&output).to_owned())
    }
}

/// Runs the program, and returns the output of `--version`.
fn says_its_version(program: &[u8]) -> String {
    let dir = TempDir::new().unwrap();
    let (file, path) = (dir.path().join("program"), dir.path().join("it"));
    std::fs::write(&file, program).unwrap();
    // Copied by another process: a child that another test forks could inherit a writable descriptor of the file, and executing
    // it would fail.
    let install = Command::new("install").args([&file, &path]).status();
    assert!(install.unwrap().success());
    let output = Command::new(path).arg("--version").output().unwrap();
    stdout(&output).to_owned()
}

/// Some of these commits resemble other bytes of the program. Only the bytes of the commit may change.
#[test]
fn a_stamped_program_differs_in_the_commit_alone() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_foo-controller")).unwrap();
    for commit in [
        "0123456789abcdef0123456789abcdef01234567",
        "0000000000000000000000000000000000000000",
        "0123456789abcdef0123456789abcdef01-dirty",
    ] {
        let stamped = stamp(&program, commit).unwrap();
        assert_eq!(stamped.len(), program.len());
        let differ = std::iter::zip(&program, &stamped).enumerate();
        let differ = differ.filter(|(_, (old, new))| old != new);
        let differ: Vec<usize> = differ.map(|(at, _)| at).collect();
        let from = differ[0];
        assert_eq!(differ, (from..from + 40).collect::<Vec<_>>());
        assert_eq!(&stamped[from..from + 40], commit.as_bytes());
        assert_eq!(
            says_its_version(&stamped),
            format!("foo-controller {} ({commit})\n", env!("CARGO_PKG_VERSION"))
        );
        let again = stamp(&stamped, commit).unwrap_err();
        assert!(
            again.ends_with(": 0 places for a commit, not one\n"),
            "{again}"
        );
    }
}

#[test]
fn stamping_fails_without_exactly_one_placeholder() {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let blank = "?".repeat(40);
    let place = format!("built by the runtime from commit {blank}");
    let stamped = stamp(format!("a\0{place}\nb").as_bytes(), commit).unwrap();
    assert_eq!(
        stamped,
        format!("a\0{}\nb", place.replace(&blank, commit)).as_bytes()
    );
    for (program, commit, why) in [
        ("", commit, "0 places for a commit, not one"),
        (&*blank, commit, "0 places for a commit, not one"),
        (
            &place[..place.len() - 1],
            commit,
            "0 places for a commit, not one",
        ),
        (
            &format!("{place}\0{place}"),
            commit,
            "2 places for a commit, not one",
        ),
        (&*place, "0123", "\"0123\" has 4 characters, not 40"),
        (&*place, "", "\"\" has 0 characters, not 40"),
        (
            &*place,
            &"?".repeat(40),
            "not only the commit's bytes would differ",
        ),
    ] {
        let said = stamp(program.as_bytes(), commit).unwrap_err();
        assert!(said.trim_end().ends_with(why), "{program:?}: {said}");
    }
}

/// `foo-controller config | head -c1`: a reader that exits early is not an error.
#[test]
fn closed_pipe_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = program().arg("config").stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}
