//! The process (rows P1–P3): how it finds its cluster, how it waits for one, how it stops, what it says about itself.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod cluster;
mod controller;

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use cluster::{Cluster, Options, eventually, shared};
use controller::Controller;
use foo_controller::api::{Foo, FooSpec};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, api::PostParams};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Mutex, MutexGuard},
};

const DEADLINE: Duration = Duration::from_secs(30);

/// A namespace on the shared server, with the CRD there.
async fn namespace(prefix: &str) -> String {
    static CRD: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    CRD.get_or_init(|| shared().install_crd()).await;
    shared().namespace(prefix).await
}

/// A server to break, one test at a time; whole again at the start of each.
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

/// A kubeconfig like the cluster's, with something else in it.
fn kubeconfig(cluster: &Cluster, file: &Path, change: impl FnOnce(&mut Value)) {
    let text = std::fs::read(cluster.kubeconfig()).unwrap();
    let mut kubeconfig = serde_json::from_slice(&text).unwrap();
    change(&mut kubeconfig);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, kubeconfig.to_string()).unwrap();
}

/// A GET's status code.
async fn get(addr: std::net::SocketAddr, path: &str) -> u16 {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// No variable makes a proxy of the way to the API server, however it is written and whatever is excepted from it: everywhere in
/// the environment it is the same broken or silent one. What a kubeconfig names, is refused.
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
        controller.wait_for_log("working").await;
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
            "error: the kubeconfig names the proxy {silent_url}/ (proxy-url): the API server is to be reached without one"
        )
    );
}

/// Row P1: each way to name the cluster, and what goes over what.
#[tokio::test]
async fn p1_finds_its_cluster() {
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
        by_flag.wait_for_log("working"),
        by_variable.wait_for_log("working"),
        by_master.wait_for_log("working"),
        at_home.wait_for_log("working"),
    );
}

/// Row P1: an address without TLS (`kubectl proxy` beside it) will do alone, also in an image that has no CA certificates.
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

/// Row P1: a kubeconfig that is of no use is said in one line that names it, and who named it.
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
    // What is quoted of it could be its token.
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

/// Row P2.
#[tokio::test]
async fn p2_either_signal_ends_it_with_0() {
    let namespace = namespace("signal").await;
    for signal in [Signal::TERM, Signal::INT] {
        let mut controller = Controller::start(shared(), &["--namespace", &namespace]);
        controller.wait_for_log("working").await;
        controller.signal(signal);
        assert_eq!(controller.exit_code().await, 0);
        controller.wait_for_log("stopped").await;
    }
}

/// A controller amid many Foos, whose API server stands still: both workers wait for an answer.
async fn in_flight(cluster: &Cluster, args: &[&str]) -> (Controller, Api<Deployment>) {
    const FOOS: usize = 300;
    cluster.install_crd().await;
    let namespace = cluster.namespace("flight").await;
    let foos = Api::<Foo>::namespaced(cluster.client().await, &namespace);
    for number in 0..FOOS {
        let name = format!("foo-{number}");
        let spec = FooSpec {
            deployment_name: name.clone(),
            replicas: Some(1),
        };
        foos.create(&PostParams::default(), &Foo::new(&name, spec))
            .await
            .unwrap();
    }
    let args = [&["--namespace", &namespace], args].concat();
    let controller = Controller::start(cluster, &args);
    controller.wait_for_log("created the Deployment").await;
    cluster.freeze_apiserver().await;
    let created = controller.logged("created the Deployment");
    assert!(created < FOOS, "the server stood still too late");
    let deployments = Api::namespaced(cluster.client().await, &namespace);
    (controller, deployments)
}

/// Row P2: what was under way is finished, not cut off: nothing was made that the controller did not hear of.
#[tokio::test]
async fn p2_work_in_flight_finishes() {
    let cluster = fragile().await;
    let cluster = cluster.as_ref().unwrap();
    let (mut controller, deployments) = in_flight(cluster, &[]).await;
    let before = controller.logged("created the Deployment");
    controller.signal(Signal::TERM);
    controller.wait_for_log("stopping").await;
    cluster.thaw_apiserver().await;
    assert_eq!(controller.exit_code().await, 0);
    let after = controller.logged("created the Deployment");
    let made = deployments.list(&<_>::default()).await.unwrap().items.len();
    assert_eq!(made, after);
    assert!(after - before <= 2, "took {} more", after - before);
}

/// Row P2: no longer than the shutdown timeout, though.
#[tokio::test]
async fn p2_work_that_hangs_is_cut_off() {
    let cluster = fragile().await;
    let args = ["--shutdown-timeout", "1s"];
    let (mut controller, _) = in_flight(cluster.as_ref().unwrap(), &args).await;
    assert_eq!(controller.stop().await, 0);
    controller.wait_for_log("cut off").await;
}

/// Row P2.
#[tokio::test]
async fn p2_a_second_signal_ends_it_with_1() {
    let cluster = fragile().await;
    let args = ["--shutdown-timeout", "1h"];
    let (mut controller, _) = in_flight(cluster.as_ref().unwrap(), &args).await;
    controller.signal(Signal::TERM);
    // Two signals at once may be one: it has taken the first when it wants no more work.
    controller.wait_for_log("stopping").await;
    controller.signal(Signal::INT);
    assert_eq!(controller.exit_code().await, 1);
    assert_eq!(controller.logged("stopped"), 0);
}

/// Row P3; the reason of R4.
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
            "WARN Resource \"taken\" already exists and is not managed by Foo; trying again",
            &format!("foo={namespace}/taken"),
            "reason=\"ErrResourceExists\"",
            "delay=",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}

/// No API server at the start: said once, waited for, and worked with when it is there.
#[tokio::test]
async fn waits_for_the_api_server() {
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
    waiting.wait_for_log("working").await;
    for resource in ["foos", "deployments"] {
        let said = waiting
            .log()
            .lines()
            .filter(|line| line.contains("refused") && line.contains(resource))
            .count();
        assert_eq!(said, 1, "the cause about {resource}");
    }
}

/// No CRD: the log says what is missing and the command, `/readyz` says no, and the work begins once it is there.
#[tokio::test]
async fn waits_for_the_crd() {
    let cluster = fragile().await;
    let cluster = cluster.as_ref().unwrap();
    let crd = ["delete", "crd", "foos.samplecontroller.k8s.io"];
    cluster
        .kubectl(&[&crd[..], &["--ignore-not-found"]].concat())
        .await
        .success();
    let controller = Controller::start(cluster, &[]);
    let line = controller.wait_for_log("is not installed").await;
    for part in ["foos.samplecontroller.k8s.io", "kubectl apply -k deploy"] {
        assert!(line.contains(part), "{line}");
    }
    let addr = controller.http_addr().await;
    assert_eq!(get(addr, "/livez").await, 200);
    assert_eq!(get(addr, "/readyz").await, 503);
    cluster.install_crd().await;
    controller.wait_for_log("working").await;
    assert_eq!(get(addr, "/readyz").await, 200);
    assert_eq!(controller.logged("is not installed"), 1);
}

/// `/livez` answers, and `/readyz` says no, while the API server does not.
#[tokio::test]
async fn lives_before_it_is_ready() {
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

/// Without rights it says which it lacks, and works once it has them.
#[tokio::test]
async fn names_the_right_that_it_lacks() {
    let namespace = namespace("rights").await;
    let admin = async |args: &[&str]| {
        let args = [&["-n", &namespace], args].concat();
        shared().kubectl(&args).await.success()
    };
    let grant = async |name: &str, verbs: &str, resource: &str| {
        let (verbs, resource) = (format!("--verb={verbs}"), format!("--resource={resource}"));
        admin(&["create", "role", name, &verbs, &resource]).await;
        let (role, user) = (
            format!("--role={name}"),
            format!("--serviceaccount={namespace}:nobody"),
        );
        admin(&["create", "rolebinding", name, &role, &user]).await;
    };
    admin(&["create", "serviceaccount", "nobody"]).await;
    let token = admin(&["create", "token", "nobody"]).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nobody");
    kubeconfig(shared(), &file, |config| {
        config["users"][0]["user"]["token"] = token.trim().into();
    });
    apply(shared(), &namespace, &foo("wants")).await;
    let controller = Controller::spawn(|command| {
        command
            .args(["--namespace", &namespace, "--kubeconfig"])
            .arg(&file);
    });
    for resource in ["foos", "deployments"] {
        let right = format!("not allowed to list and watch {resource} in namespace {namespace}");
        controller.wait_for_log(&right).await;
    }
    let foos = "foos.samplecontroller.k8s.io";
    grant("read-foos", "list,watch", foos).await;
    grant("read-deployments", "list,watch", "deployments.apps").await;
    controller.wait_for_log("working").await;
    controller
        .wait_for_log("cannot create resource \"deployments\"")
        .await;
    grant("write-deployments", "create,patch", "deployments.apps").await;
    grant("write-status", "patch", &format!("{foos}/status")).await;
    controller.wait_for_log("created the Deployment").await;
}

/// A port that is taken is a matter of configuration.
#[tokio::test]
async fn a_taken_port_ends_it_with_2() {
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

/// `log.format`: one JSON object a line, or text without the colours of a terminal.
#[tokio::test]
async fn logs_in_the_form_asked_for() {
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
    text.wait_for_log(" INFO working").await;
    assert_eq!(text.stop().await, 0);
    assert!(!text.log().contains('\u{1b}'), "{}", text.log());
}

/// The token is in no log, however much is logged.
#[tokio::test]
async fn the_token_is_never_logged() {
    let namespace = namespace("token").await;
    apply(shared(), &namespace, &foo("it")).await;
    let scope = format!("--namespace={namespace}");
    let token = &shared().ready().tokens["admin"];
    for (level, says) in [("debug", " INFO "), ("trace,kube_client=trace", "TRACE ")] {
        let mut controller = Controller::start(shared(), &[&scope, "--log-level", level]);
        controller.wait_for_log("working").await;
        assert_eq!(controller.stop().await, 0);
        let log = controller.log();
        assert!(log.contains(says) && !log.contains(token), "at {level}");
    }
}
