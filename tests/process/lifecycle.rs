//! The process: how it finds its cluster, waits for it, and stops, and its messages about itself.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use foo_controller::{APP, api::Foo};
use k8s_openapi::api::{apps::v1::Deployment, coordination::v1::Lease};
use kube::Api;
use operator_runtime::Config;
use operator_testkit::{
    cluster::{Cluster, Options, eventually, shared},
    proxy::{At, Held, Proxy},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Mutex, MutexGuard},
};

use crate::support::controller::Controller;

const DEADLINE: Duration = Duration::from_secs(30);
const LEASE: &str = "foo-controller";

/// Creates a namespace on the shared server, with the CRD installed.
async fn namespace(prefix: &str) -> String {
    static CRD: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    CRD.get_or_init(|| shared().install_crd()).await;
    shared().namespace(prefix).await
}

/// A server for destructive tests, one at a time. It is thawed at the start of each test.
async fn fragile() -> MutexGuard<'static, Option<Cluster>> {
    static FRAGILE: Mutex<Option<Cluster>> = Mutex::const_new(None);
    let mut cluster = FRAGILE.lock().await;
    cluster
        .get_or_insert_with(|| Cluster::start(Options::default()))
        .thaw_apiserver()
        .await;
    cluster
}

async fn apply(cluster: &Cluster, namespace: &str, manifest: &Value) {
    cluster
        .kubectl_stdin(
            &["-n", namespace, "apply", "-f", "-"],
            &manifest.to_string(),
        )
        .await
        .success();
}

fn foo(name: &str) -> Value {
    json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1",
        "kind": "Foo",
        "metadata": { "name": name },
        "spec": { "deploymentName": name, "replicas": 1 },
    })
}

/// Writes a copy of the cluster's kubeconfig with a change.
fn kubeconfig(cluster: &Cluster, file: &Path, change: impl FnOnce(&mut Value)) {
    let text = std::fs::read(cluster.kubeconfig()).unwrap();
    let mut kubeconfig = serde_json::from_slice(&text).unwrap();
    change(&mut kubeconfig);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, kubeconfig.to_string()).unwrap();
}

/// Returns the status code of a GET.
async fn get(addr: std::net::SocketAddr, path: &str) -> u16 {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Proxy variables are ignored for the API server, in either case and with any exceptions: all of them name the same broken or
/// silent proxy. A proxy in the kubeconfig is rejected.
#[tokio::test]
async fn proxies_of_the_environment_are_not_used() {
    let namespace = namespace("proxy").await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let names = ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"];
    let all = names.map(|name| [name.to_owned(), name.to_lowercase()]);
    let all = all.as_flattened();
    let start = |with: &dyn Fn(&mut Command)| {
        Controller::spawn(|command| {
            let kubeconfig = shared().kubeconfig();
            command
                .args(["--namespace", &namespace])
                .env("KUBECONFIG", kubeconfig);
            with(command);
        })
    };
    let set = |command: &mut Command, proxy: &str| {
        command.envs(all.iter().map(|name| (name, proxy)));
    };
    let controllers = [
        start(&|command| set(command, &silent_url)),
        start(&|command| {
            set(command, &silent_url);
            command
                .arg("--kubeconfig")
                .arg(shared().kubeconfig())
                .env("NO_PROXY", "*");
        }),
        start(&|command| {
            set(command, &silent_url);
            command
                .env("NO_PROXY", "example.com")
                .env("no_proxy", "127.0.0.1");
        }),
        start(&|command| set(command, "not a proxy")),
    ];
    for controller in &controllers {
        controller.wait_for_log("started workers").await;
    }
    let connected = tokio::time::timeout(Duration::ZERO, silent.accept()).await;
    assert!(connected.is_err(), "the proxy was asked");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("with-proxy");
    kubeconfig(shared(), &file, |config| {
        config["clusters"][0]["cluster"]["proxy-url"] = silent_url.clone().into();
    });
    let mut refused = Controller::spawn(|command| {
        command.env("KUBECONFIG", &file);
    });
    assert_eq!(refused.exit_code().await, 2);
    let last = refused.log().lines().last().unwrap_or_default().to_owned();
    assert_eq!(
        last,
        format!(
            "error: the kubeconfig specifies the proxy {silent_url}/ (proxy-url): proxies are not supported"
        )
    );
}

/// Each method to name the cluster, and their precedence.
#[tokio::test]
async fn p1_the_controller_finds_its_cluster() {
    let namespace = namespace("find").await;
    let good = shared().kubeconfig();
    let scope = format!("--namespace={namespace}");
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = dir.path().join("elsewhere");
    kubeconfig(shared(), &elsewhere, |config| {
        config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1".into();
    });
    let by_flag = Controller::spawn(|command| {
        command
            .args([&scope, "--kubeconfig"])
            .arg(good)
            .env("KUBECONFIG", &elsewhere);
    });
    let by_variable = Controller::spawn(|command| {
        command.arg(&scope).env("KUBECONFIG", good);
    });
    let by_master = Controller::spawn(|command| {
        command
            .args([&scope, "--master", &shared().ready().server])
            .env("KUBECONFIG", &elsewhere);
    });
    let at_home = Controller::spawn(|command| {
        kubeconfig(shared(), &dir.path().join(".kube/config"), |_| {});
        command.arg(&scope).env("HOME", dir.path());
    });
    tokio::join!(
        by_flag.wait_for_log("started workers"),
        by_variable.wait_for_log("started workers"),
        by_master.wait_for_log("started workers"),
        at_home.wait_for_log("started workers"),
    );
}

/// An address without TLS (`kubectl proxy` as a sidecar) is sufficient, also in an image without CA certificates.
#[tokio::test]
async fn p1_an_address_without_tls_needs_no_certificates() {
    let empty = tempfile::tempdir().unwrap();
    let controller = Controller::spawn(|command| {
        command
            .arg("--master=http://127.0.0.1:1")
            .envs(["HOME", "SSL_CERT_DIR"].map(|name| (name, empty.path())))
            .env("SSL_CERT_FILE", "/dev/null");
    });
    controller.wait_for_log("Connection refused").await;
}

/// An invalid kubeconfig is reported in one line, which contains its path or the setting that named it.
#[tokio::test]
async fn p1_a_useless_kubeconfig_ends_it_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let missing = dir.path().join("missing").display().to_string();
    // A quoted part of the file could be its token.
    let broken = file("broken", "token: secret\nclusters: [");
    let empty = file("empty", "");
    let lost = file("lost", "current-context: nowhere");
    file("home/.kube/config", "clusters: [");
    let home = dir.path().join("home").display().to_string();
    for (flag, variable, home, names) in [
        (Some(&missing), None, None, &*missing),
        (Some(&broken), None, None, &*broken),
        (Some(&empty), None, None, &*empty),
        (Some(&lost), None, None, &*lost),
        (None, Some(&missing), None, "$KUBECONFIG"),
        (None, Some(&broken), None, "$KUBECONFIG"),
        (None, None, Some(&home), "~/.kube/config"),
        (None, None, None, "~/.kube/config"),
    ] {
        let mut controller = Controller::spawn(|command| {
            command.args(flag.map(|flag| format!("--kubeconfig={flag}")));
            command.envs(variable.map(|value| ("KUBECONFIG", value)));
            command.envs(home.map(|value| ("HOME", value)));
        });
        assert_eq!(controller.exit_code().await, 2, "{names}");
        let log = controller.log();
        let mut said = log
            .lines()
            .filter(|line| !line.contains("INFO configuration: "));
        let (error, more) = (said.next().unwrap(), said.next());
        assert!(
            error.starts_with("error: ") && error.contains(names),
            "{log}"
        );
        assert_eq!(more, None, "{log}");
        assert!(!log.contains("secret"), "{log}");
    }
}

/// Outside a pod, the namespace of the Lease must be configured. The kubeconfig, `default`, or the own pod of a replica for
/// another cluster do not determine the namespace of the other replicas.
#[tokio::test]
async fn h17_an_election_outside_a_pod_needs_a_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    let config = json!({
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "of-context"}}],
        "current-context": "c",
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let start = |args: &[&str], env: &[(&str, &str)]| {
        Controller::spawn(|command| {
            command
                .env_remove("FOO_CONTROLLER__LEADER_ELECTION__ENABLED")
                .envs(env.iter().copied())
                .arg("--kubeconfig")
                .arg(&file)
                .args(args);
        })
    };
    let in_a_pod = ("KUBERNETES_SERVICE_HOST", "127.0.0.1");
    for mut refused in [start(&[], &[]), start(&[], &[in_a_pod])] {
        assert_eq!(refused.exit_code().await, 2);
        let log = refused.log();
        let mut said = log
            .lines()
            .filter(|line| !line.contains("INFO configuration: "));
        let (error, more) = (said.next().unwrap(), said.next());
        assert_eq!(more, None, "{log}");
        assert!(error.starts_with("error: no namespace"), "{error}");
        for way in [
            "leader_election.lease_namespace",
            "--lease-namespace",
            "FOO_CONTROLLER__LEADER_ELECTION__LEASE_NAMESPACE",
            "--leader-election",
        ] {
            assert!(error.contains(way), "{way} is not in {error}");
        }
    }
    let file = dir.path().join("foo.toml");
    std::fs::write(&file, "[leader_election]\nlease_namespace = 'n'").unwrap();
    let file = format!("--config={}", file.display());
    for controller in [
        start(&["--lease-namespace=n"], &[]),
        start(
            &[],
            &[("FOO_CONTROLLER__LEADER_ELECTION__LEASE_NAMESPACE", "n")],
        ),
        start(&[&file], &[]),
        start(&[], &[("POD_NAMESPACE", "n")]),
        start(&["--leader-election=false"], &[]),
    ] {
        controller.wait_for_log("starting").await;
    }
}

/// Two processes of one pod have the same identity, even if no port conflict stops the second one. After the first has ended,
/// the next process continues with its Lease.
#[tokio::test]
async fn h18_two_processes_of_one_pod_never_both_lead() {
    let namespace = namespace("pod").await;
    shared().release_lease(&namespace, LEASE).await;
    let start = |name: &str| {
        Controller::spawn(|command| {
            command
                .env("KUBECONFIG", shared().kubeconfig())
                .env("FOO_CONTROLLER__HTTP__ADDR", "")
                .env("POD_NAME", name)
                .env("POD_UID", &namespace)
                .env("POD_NAMESPACE", &namespace)
                .args(["--namespace", &namespace, "--leader-election"]);
        })
    };
    let first = start("it");
    first.wait_for_log("gained the lease").await;
    let mut second = start("it");
    assert_eq!(second.exit_code().await, 2);
    let log = second.log();
    let error = log.lines().last().unwrap();
    assert!(error.starts_with("error: "), "{log}");
    assert!(
        error.contains(&format!(" it_{namespace},")) && error.contains("in use"),
        "{log}"
    );
    first.signal(Signal::KILL);
    drop(first);
    let again = start("it");
    let begun = Instant::now();
    again.wait_for_log("gained the lease").await;
    let took = begun.elapsed();
    assert!(
        took < Config::shipped(&APP).leader_election.lease_duration,
        "{took:?}"
    );
}

#[tokio::test]
async fn p2_either_signal_ends_it_with_0() {
    let namespace = namespace("signal").await;
    for signal in [Signal::TERM, Signal::INT] {
        let mut controller = Controller::start(shared(), &["--namespace", &namespace]);
        controller.wait_for_log("started workers").await;
        controller.signal(signal);
        assert_eq!(controller.exit_code().await, 0);
        controller.wait_for_log("stopped").await;
    }
}

/// A leader with two workers. Both wait for the response to a create that the proxy holds back.
struct InFlight {
    controller: Controller,
    creates: [Held; 2],
    namespace: String,
    _proxy: Proxy,
}

impl InFlight {
    async fn start(args: &[&str]) -> Self {
        let namespace = namespace("flight").await;
        shared().release_lease(&namespace, LEASE).await;
        for number in 0..3 {
            apply(shared(), &namespace, &foo(&format!("foo-{number}"))).await;
        }
        let proxy = Proxy::start(shared().kube_config().await).await;
        let hold = || proxy.on("create", "deployments").hold(At::Server);
        let mut creates = [hold(), hold()];
        let (url, scope) = (proxy.url(), format!("--lease-namespace={namespace}"));
        let by_proxy = ["--master", &url, "--namespace", &namespace];
        let leads = ["--workers=2", "--leader-election", &scope];
        let controller = Controller::start(shared(), &[&by_proxy[..], &leads, args].concat());
        for create in &mut creates {
            create.arrived().await;
        }
        Self {
            controller,
            creates,
            namespace,
            _proxy: proxy,
        }
    }

    async fn deployments(&self) -> usize {
        let client = shared().client().await;
        let deployments = Api::<Deployment>::namespaced(client, &self.namespace);
        deployments.list(&<_>::default()).await.unwrap().items.len()
    }

    /// Returns whether another replica could acquire the Lease immediately.
    async fn is_released(&self) -> bool {
        let client = shared().client().await;
        let leases = Api::<Lease>::namespaced(client, &self.namespace);
        let lease = leases.get(LEASE).await.unwrap();
        lease
            .spec
            .unwrap()
            .holder_identity
            .unwrap_or_default()
            .is_empty()
    }
}

/// Work in flight is completed: the controller receives the response to every create.
#[tokio::test]
async fn p2_work_in_flight_finishes() {
    let mut flight = InFlight::start(&[]).await;
    flight.controller.signal(Signal::TERM);
    flight.controller.wait_for_log("stopping").await;
    let InFlight {
        creates: [one, other],
        ..
    } = &mut flight;
    for create in [one, other] {
        assert_eq!(create.go().await, 201);
    }
    assert_eq!(flight.controller.exit_code().await, 0);
    assert_eq!(flight.controller.logged("created the Deployment"), 2);
    assert_eq!(flight.deployments().await, 2, "and nothing was begun");
    assert!(flight.is_released().await);
}

/// Work in flight is cut off after the shutdown timeout. A request may still be executed later, so the Lease is not released.
#[tokio::test]
async fn p2_work_that_hangs_is_cut_off() {
    let mut flight = InFlight::start(&["--shutdown-timeout=1s"]).await;
    assert_eq!(flight.controller.stop().await, 0);
    flight
        .controller
        .wait_for_log("aborting running reconciles")
        .await;
    flight.controller.wait_for_log("lease not released").await;
    assert_eq!(flight.creates[0].go().await, 201, "it lands now");
    assert!(!flight.is_released().await);
}

#[tokio::test]
async fn p2_a_second_signal_ends_it_with_1() {
    let mut flight = InFlight::start(&["--shutdown-timeout=1h"]).await;
    let controller = &mut flight.controller;
    controller.signal(Signal::TERM);
    // Two signals in quick succession may be delivered as one. The first was received once the controller logs that it is
    // stopping.
    controller.wait_for_log("stopping").await;
    controller.signal(Signal::INT);
    assert_eq!(controller.exit_code().await, 1);
    assert_eq!(controller.logged("stopped"), 0);
}

/// The error reports a Deployment that the Foo does not control.
#[tokio::test]
async fn p3_every_retry_names_its_object_and_reason() {
    let namespace = namespace("retry").await;
    let foreign = ["-n", &namespace, "create", "deployment", "taken"];
    shared()
        .kubectl(&[&foreign[..], &["--image=theirs"]].concat())
        .await
        .success();
    apply(shared(), &namespace, &foo("taken")).await;
    let controller = Controller::start(shared(), &["--namespace", &namespace]);
    for attempt in 1..=4 {
        let line = controller
            .wait_for_log(&format!("attempt={attempt} "))
            .await;
        for part in [
            "WARN Resource \"taken\" already exists and is not managed by Foo; retrying",
            &format!("object={namespace}/taken"),
            "reason=\"ErrResourceExists\"",
            "delay=",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

/// Without an API server, the controller logs that once, waits, and starts to work when the server is there.
#[tokio::test]
async fn the_controller_waits_for_the_api_server() {
    let cluster = Cluster::start(Options::default());
    cluster.install_crd().await;
    cluster.kill_apiserver().await;
    let mut stopped = Controller::start(&cluster, &[]);
    let waiting = Controller::start(&cluster, &[]);
    stopped.wait_for_log("Connection refused").await;
    waiting.wait_for_log("Connection refused").await;
    let begun = Instant::now();
    stopped.signal(Signal::TERM);
    assert_eq!(stopped.exit_code().await, 0);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(3), "SIGTERM took {took:?}");
    cluster.start_apiserver().await;
    waiting.wait_for_log("started workers").await;
    for resource in ["foos", "deployments"] {
        let said = waiting
            .log()
            .lines()
            .filter(|line| line.contains("refused") && line.contains(resource))
            .count();
        assert_eq!(said, 1, "the cause about {resource}");
    }
}

/// Without the CRD, the log contains its name and the command to install it, and `/readyz` fails. The work starts when the CRD
/// is installed.
#[tokio::test]
async fn the_controller_waits_for_the_crd() {
    let cluster = fragile().await;
    let cluster = cluster.as_ref().unwrap();
    let crd = ["delete", "crd", "foos.samplecontroller.k8s.io"];
    cluster
        .kubectl(&[&crd[..], &["--ignore-not-found"]].concat())
        .await
        .success();
    let controller = Controller::start(cluster, &[]);
    let line = controller.wait_for_log("is not installed").await;
    for part in [
        "foos.samplecontroller.k8s.io",
        "foo-controller crd | kubectl apply -f -",
    ] {
        assert!(line.contains(part), "{line}");
    }
    let addr = controller.http_addr().await;
    assert_eq!(get(addr, "/livez").await, 200);
    assert_eq!(get(addr, "/readyz").await, 503);
    cluster.install_crd().await;
    controller.wait_for_log("started workers").await;
    ready(&controller, 200, "").await;
    assert_eq!(controller.logged("is not installed"), 1);
}

/// While the API server does not respond, `/livez` succeeds and `/readyz` fails.
#[tokio::test]
async fn the_controller_is_live_before_it_is_ready() {
    let cluster = fragile().await;
    let cluster = cluster.as_ref().unwrap();
    cluster.install_crd().await;
    cluster.freeze_apiserver().await;
    let controller = Controller::start(cluster, &[]);
    let addr = controller.http_addr().await;
    assert_eq!(get(addr, "/livez").await, 200);
    assert_eq!(get(addr, "/readyz").await, 503);
    cluster.thaw_apiserver().await;
    eventually(DEADLINE, "ready", async || {
        match get(addr, "/readyz").await {
            200 => Ok(()),
            code => Err(code),
        }
    })
    .await;
}

/// A service account with its own kubeconfig. It has only the permissions granted by a test.
struct Account {
    home: String,
    name: &'static str,
    kubeconfig: tempfile::TempDir,
}

impl Account {
    async fn new(home: &str, name: &'static str) -> Self {
        let kubectl = async |args: &[&str]| {
            let args = [&["-n", home], args].concat();
            shared().kubectl(&args).await.success()
        };
        kubectl(&["create", "serviceaccount", name]).await;
        let token = kubectl(&["create", "token", name]).await;
        let dir = tempfile::tempdir().unwrap();
        kubeconfig(shared(), &dir.path().join("it"), |config| {
            config["users"][0]["user"]["token"] = token.trim().into();
        });
        Self {
            home: home.to_owned(),
            name,
            kubeconfig: dir,
        }
    }

    async fn grant(&self, namespace: &str, right: &str, rules: &[(&str, &str, &str)]) {
        let rules: Vec<_> = rules
            .iter()
            .map(|(group, resource, verbs)| {
                let verbs: Vec<_> = verbs.split(',').collect();
                json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs })
            })
            .collect();
        let name = format!("{}-{right}", self.name);
        let subject =
            json!({ "kind": "ServiceAccount", "name": self.name, "namespace": self.home });
        let of = |kind: &str| json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": { "name": name } });
        let (mut role, mut binding) = (of("Role"), of("RoleBinding"));
        role["rules"] = rules.into();
        binding["subjects"] = json!([subject]);
        binding["roleRef"] =
            json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name });
        apply(shared(), namespace, &role).await;
        apply(shared(), namespace, &binding).await;
    }

    /// Grants the permissions for the work, as in deploy/base.
    async fn may_work_in(&self, namespace: &str) {
        let rules = [
            (FOOS, "foos", "list,watch"),
            (FOOS, "foos/status", "update"),
            ("apps", "deployments", "list,watch,create,patch,delete"),
            ("events.k8s.io", "events", "create,patch"),
        ];
        self.grant(namespace, "works", &rules).await;
    }

    /// Grants the permissions for the election, as in deploy/base.
    async fn may_lead(&self) {
        let verbs = "create,get,list,watch,patch";
        let rules = [("coordination.k8s.io", "leases", verbs)];
        self.grant(&self.home, "leads", &rules).await;
    }

    async fn revoke(&self, namespace: &str) {
        let name = format!("{}-works", self.name);
        let delete = ["-n", namespace, "delete", "rolebinding", &name];
        shared().kubectl(&delete).await.success();
    }

    fn start(&self, args: &[&str]) -> Controller {
        Controller::spawn(|command| {
            let file = self.kubeconfig.path().join("it");
            command.arg("--kubeconfig").arg(file).args(args);
        })
    }

    /// Starts a replica for these namespaces that takes part in the election of `home`. It stops serving a namespace 3 s after
    /// a permission is lost.
    fn stand(&self, namespaces: &[&str]) -> Controller {
        let scopes: Vec<_> = namespaces
            .iter()
            .map(|name| format!("--namespace={name}"))
            .collect();
        let home = format!("--lease-namespace={}", self.home);
        let mut args = vec![
            "--leader-election",
            "--lease-duration=3s",
            "--lease-renew-deadline=2s",
            "--lease-retry-period=500ms",
            &home,
        ];
        args.extend(scopes.iter().map(String::as_str));
        self.start(&args)
    }
}

const FOOS: &str = "samplecontroller.k8s.io";

/// Waits until the Foo has its Deployment and a status.
async fn deployed(namespace: &str, name: &str, within: Duration) {
    let begun = Instant::now();
    let client = shared().client().await;
    let deployments = Api::<Deployment>::namespaced(client.clone(), namespace);
    let foos = Api::<Foo>::namespaced(client, namespace);
    eventually(
        within,
        &format!("{namespace}/{name} has its Deployment"),
        async || {
            deployments
                .get(name)
                .await
                .map_err(|error| error.to_string())?;
            let foo = foos.get(name).await.map_err(|error| error.to_string())?;
            foo.status
                .filter(|status| !status.conditions.is_empty())
                .ok_or("no status".to_owned())
        },
    )
    .await;
    println!(
        "{namespace}/{name} has its Deployment after {:?}",
        begun.elapsed()
    );
}

/// Returns the status code and all readiness checks.
async fn readiness(controller: &Controller) -> (u16, String) {
    let addr = controller.http_addr().await;
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = "GET /readyz?verbose HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (code, answer)
}

async fn ready(controller: &Controller, code: u16, says: &str) {
    eventually(DEADLINE, &format!("{code}: {says}"), async || {
        let answer = readiness(controller).await;
        if answer.0 == code && answer.1.contains(says) {
            Ok(())
        } else {
            Err(answer)
        }
    })
    .await;
}

/// The controller logs each missing permission, and starts to work when all are granted.
#[tokio::test]
async fn missing_permissions_are_logged() {
    let namespace = namespace("rights").await;
    let nobody = Account::new(&namespace, "nobody").await;
    apply(shared(), &namespace, &foo("wants")).await;
    let controller = nobody.start(&["--namespace", &namespace]);
    for resource in ["foos", "deployments"] {
        let right = format!("not allowed to list and watch {resource} in namespace {namespace}");
        controller.wait_for_log(&right).await;
    }
    let reads = [
        (FOOS, "foos", "list,watch"),
        ("apps", "deployments", "list,watch"),
    ];
    nobody.grant(&namespace, "reads", &reads).await;
    controller.wait_for_log("started workers").await;
    for (right, rule) in [
        ("create deployments", ("apps", "deployments", "create")),
        ("patch deployments", ("apps", "deployments", "patch")),
        ("update foos/status", (FOOS, "foos/status", "update")),
    ] {
        let lacks = format!("not allowed to {right} in namespace {namespace}");
        controller.wait_for_log(&lacks).await;
        ready(&controller, 503, &lacks).await;
        nobody
            .grant(&namespace, &right.replace([' ', '/'], "-"), &[rule])
            .await;
    }
    deployed(&namespace, "wants", DEADLINE).await;
    ready(&controller, 200, "[+]informer-sync ok\n").await;
    assert_eq!(controller.logged("not allowed to create deployments"), 1);
}

/// Each namespace is served independently, with one replica and with two. The forbidden one is served as soon as the permission
/// is granted.
#[tokio::test]
async fn a_forbidden_namespace_stops_no_other() {
    const SOON: Duration = Duration::from_secs(10);
    let (a, b) = (namespace("able-a").await, namespace("able-b").await);
    let account = Account::new(&a, "half").await;
    shared().release_lease(&a, LEASE).await;
    account.may_lead().await;
    account.may_work_in(&a).await;
    for namespace in [&a, &b] {
        apply(shared(), namespace, &foo("first")).await;
    }
    let one = account.stand(&[&a, &b]);
    deployed(&a, "first", SOON).await;
    let why = format!("not served: not allowed to list and watch deployments in namespace {b}");
    let other = why.replace("deployments", "foos");
    eventually(
        DEADLINE,
        "ready, and says what is not served",
        async || match readiness(&one).await {
            (200, text) if text.contains(&why) || text.contains(&other) => Ok(()),
            other => Err(other),
        },
    )
    .await;
    let two = account.stand(&[&a, &b]);
    ready(&two, 200, "not served: ").await;
    drop(one);
    apply(shared(), &a, &foo("second")).await;
    deployed(&a, "second", SOON).await;

    account.may_work_in(&b).await;
    deployed(&b, "first", SOON).await;
    ready(&two, 200, "[+]informer-sync ok\n").await;
    apply(shared(), &b, &foo("second")).await;
    deployed(&b, "second", SOON).await;
    let begun = two.logged("namespace in sync: reconciling its objects");
    assert_eq!(begun, 1, "within the term");
}

/// A replica with the permissions leads, even if one without them was started earlier.
#[tokio::test]
async fn a_replica_that_can_work_leads_instead_of_one_that_cannot() {
    let namespace = namespace("able").await;
    let (cannot, can) = (
        Account::new(&namespace, "cannot").await,
        Account::new(&namespace, "can").await,
    );
    shared().release_lease(&namespace, LEASE).await;
    cannot.may_lead().await;
    let unable = cannot.stand(&[&namespace]);
    unable.wait_for_log("not allowed to list and watch").await;
    can.may_lead().await;
    can.may_work_in(&namespace).await;
    apply(shared(), &namespace, &foo("it")).await;
    let begun = Instant::now();
    let able = can.stand(&[&namespace]);
    able.wait_for_log("gained the lease").await;
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    deployed(&namespace, "it", DEADLINE).await;
    assert_eq!(unable.logged("gained the lease"), 0);
    assert_eq!(readiness(&unable).await.0, 503);
}

/// A leader can lose its permissions without the end of a watch. Then another replica leads, and this one stays alive.
#[tokio::test]
async fn a_leader_that_loses_its_permissions_lets_another_replica_lead() {
    let namespace = namespace("revoked").await;
    shared().release_lease(&namespace, LEASE).await;
    let accounts = [
        Account::new(&namespace, "one").await,
        Account::new(&namespace, "two").await,
    ];
    let mut replicas = Vec::new();
    for account in &accounts {
        account.may_lead().await;
        account.may_work_in(&namespace).await;
        let replica = account.stand(&[&namespace]);
        ready(&replica, 200, "informer-sync ok").await;
        replicas.push(replica);
    }
    replicas[0].wait_for_log("gained the lease").await;
    for (round, leader) in [0, 1].into_iter().enumerate() {
        let other = 1 - leader;
        accounts[leader].revoke(&namespace).await;
        let name = format!("foo-{round}");
        apply(shared(), &namespace, &foo(&name)).await;
        // Stops serving after 3 s and then releases the Lease. Without the release, the Lease would expire after 3 s more.
        let begun = Instant::now();
        deployed(&namespace, &name, Duration::from_secs(20)).await;
        assert!(begun.elapsed() > Duration::from_secs(1), "nobody else led");
        replicas[leader].wait_for_log("giving up leadership").await;
        let released = replicas[leader].wait_for_log("released the lease").await;
        assert!(
            released.contains(accounts[leader].home.as_str()),
            "{released}"
        );
        assert_eq!(
            replicas[other].logged("gained the lease"),
            1 + usize::from(round == 1 && other == 0)
        );
        ready(&replicas[leader], 503, "not allowed to ").await;
        assert_eq!(get(replicas[leader].http_addr().await, "/livez").await, 200);
        accounts[leader].may_work_in(&namespace).await;
        ready(&replicas[leader], 200, "informer-sync ok").await;
    }
}

/// A port that is in use is a configuration error.
#[tokio::test]
async fn a_used_port_exits_with_2() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let mut controller = Controller::start(shared(), &["--http-addr", &addr]);
    assert_eq!(controller.exit_code().await, 2);
    let log = controller.log();
    let errors: Vec<_> = log
        .lines()
        .filter(|line| !line.contains(" INFO "))
        .collect();
    let [error] = errors[..] else { panic!("{log}") };
    for part in ["error: http.addr", &addr, "in use"] {
        assert!(error.contains(part), "{error}");
    }
}

/// `log.format`: one JSON object per line, or text without terminal colours.
#[tokio::test]
async fn logs_have_the_configured_format() {
    let namespace = namespace("form").await;
    apply(shared(), &namespace, &foo("it")).await;
    let scope = format!("--namespace={namespace}");
    let mut json = Controller::start(
        shared(),
        &[&scope, "--log-format=json", "--log-level=debug"],
    );
    json.wait_for_log("created the Deployment").await;
    assert_eq!(json.stop().await, 0);
    for line in json.log().lines() {
        let Ok(Value::Object(line)) = serde_json::from_str(line) else {
            panic!("not an object: {line}")
        };
        for key in ["timestamp", "level", "message"] {
            assert!(line[key].is_string(), "{key}: {line:?}");
        }
    }
    let mut text = Controller::start(shared(), &[&scope, "--log-format=text"]);
    text.wait_for_log(" INFO started workers").await;
    assert_eq!(text.stop().await, 0);
    assert!(!text.log().contains('\u{1b}'), "{}", text.log());
}

/// The token is not logged at any level.
#[tokio::test]
async fn the_token_is_never_logged() {
    let namespace = namespace("token").await;
    apply(shared(), &namespace, &foo("it")).await;
    let scope = format!("--namespace={namespace}");
    let token = &shared().ready().tokens["admin"];
    for (level, says) in [("debug", " INFO "), ("trace,kube_client=trace", "TRACE ")] {
        let mut controller = Controller::start(shared(), &[&scope, "--log-level", level]);
        controller.wait_for_log("started workers").await;
        assert_eq!(controller.stop().await, 0);
        let log = controller.log();
        assert!(log.contains(says) && !log.contains(token), "at {level}");
    }
}

/// The controller logs the warnings that `kubectl create deployment` prints. This test uses Deployments whose pods `PodSecurity`
/// would reject.
#[tokio::test]
async fn warnings_of_the_api_server_are_logged_once() {
    let namespace = namespace("warned").await;
    let label = "pod-security.kubernetes.io/warn=restricted";
    let label = ["label", "namespace", &namespace, label];
    shared().kubectl(&label).await.success();
    let controller = Controller::start(shared(), &["--namespace", &namespace]);
    let foos = ["one", "two", "three"];
    for name in foos {
        apply(shared(), &namespace, &foo(name)).await;
    }
    let api: Api<Deployment> = Api::namespaced(shared().client().await, &namespace);
    for name in foos {
        eventually(DEADLINE, "its Deployment", async || api.get(name).await).await;
    }
    let line = controller
        .wait_for_log("the API server warns: would violate PodSecurity")
        .await;
    assert!(
        line.contains(&format!("deployments {namespace}/")),
        "{line}"
    );
    assert_eq!(controller.logged("the API server warns"), 1);
}
