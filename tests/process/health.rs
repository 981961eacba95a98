//! The HTTP endpoints of the real controller: health checks, and metrics with and without authorization.

use std::{
    net::SocketAddr,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use foo_controller::api::{Foo, FooSpec};
use kube::{Api, api::PostParams};
use operator_testkit::{
    cluster::{self, Cluster, Options, eventually, shared},
    proxy::{At, Proxy},
};
use pem::Pem;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, DigitallySignedStruct, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::ring,
        pki_types::{CertificateDer, ServerName, UnixTime},
    },
};

use crate::support::controller::Controller;

const DEADLINE: Duration = Duration::from_secs(30);
/// Default timeout of a kubelet probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Status code and full text of a response.
type Answer = (u16, String);

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Answer {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A server that has not read the whole request may reset the connection.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.unwrap_or_default(), answer)
}

async fn ask(addr: SocketAddr, method: &str, path: &str) -> Answer {
    let stream = TcpStream::connect(addr).await.unwrap();
    exchange(
        stream,
        &format!("{method} {path} HTTP/1.1\r\nHost: it\r\n\r\n"),
    )
    .await
}

async fn get(addr: SocketAddr, path: &str) -> Answer {
    ask(addr, "GET", path).await
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

/// Creates a namespace on the shared server, with the CRD installed.
async fn namespace(prefix: &str) -> String {
    static CRD: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
    CRD.get_or_init(|| shared().install_crd()).await;
    shared().namespace(prefix).await
}

async fn ready(addr: SocketAddr) {
    eventually(DEADLINE, "ready", async || {
        let answer = get(addr, "/readyz").await;
        if answer.0 == 200 { Ok(()) } else { Err(answer) }
    })
    .await;
}

/// Names, format and paths are the same as in kube-apiserver.
#[tokio::test]
async fn checks_are_listed_as_kubernetes_does() {
    let namespace = namespace("verbose").await;
    let controller = Controller::start(shared(), &["--namespace", &namespace]);
    let addr = controller.http_addr().await;
    ready(addr).await;
    for (path, code, text) in [
        ("/livez", 200, "ok"),
        ("/readyz", 200, "ok"),
        ("/livez/leader-election", 200, "ok"),
        ("/readyz/informer-sync", 200, "ok"),
        (
            "/readyz/leader-election",
            404,
            "not found; available paths: /livez, /readyz, /metrics\n",
        ),
        (
            "/",
            404,
            "not found; available paths: /livez, /readyz, /metrics\n",
        ),
        (
            "/readyz?verbose",
            200,
            "[+]ping ok\n[+]shutdown ok\n[+]informer-sync ok\nreadyz check passed\n",
        ),
    ] {
        let answer = get(addr, path).await;
        assert_eq!((answer.0, body(&answer.1)), (code, text), "{path}");
    }
    let (code, text) = get(addr, "/livez?x=y&verbose=1").await;
    let (watches, rest): (Vec<_>, Vec<_>) = body(&text)
        .lines()
        .partition(|line| line.starts_with("[+]watch-"));
    for kind in ["foos", "deployments"] {
        let line = format!("[+]watch-{kind}/{namespace} ok");
        assert!(watches.contains(&&*line), "{text}");
    }
    let last = "livez check passed";
    let others = ["[+]ping ok", "[+]workers ok", "[+]leader-election ok", last];
    assert_eq!((code, &*rest), (200, &others[..]));
    assert_eq!(get(addr, "/metrics").await.0, 200, "open to all by default");
    let (code, text) = ask(addr, "HEAD", "/livez").await;
    assert_eq!((code, body(&text)), (200, ""));
    for method in ["POST", "DELETE", "OPTIONS"] {
        let (code, text) = ask(addr, method, "/livez").await;
        assert!(
            code == 405 && text.contains("\r\nallow: GET, HEAD\r\n"),
            "{text}"
        );
    }
}

/// A stopping replica is not ready while its work is being finished.
#[tokio::test]
async fn readiness_ends_before_the_drain() {
    let namespace = namespace("drain").await;
    let client = shared().client().await;
    let spec = FooSpec {
        deployment_name: "it".into(),
        replicas: Some(1),
    };
    let foos = Api::<Foo>::namespaced(client, &namespace);
    foos.create(&PostParams::default(), &Foo::new("it", spec))
        .await
        .unwrap();
    let proxy = Proxy::start(shared().kube_config().await).await;
    let mut create = proxy.on("create", "deployments").hold(At::Server);
    let url = proxy.url();
    let by_proxy = ["--master", &url, "--namespace", &namespace];
    let args = [&by_proxy[..], &["--shutdown-timeout=1h"]].concat();
    let mut controller = Controller::start(shared(), &args);
    let addr = controller.http_addr().await;
    create.arrived().await;
    assert_eq!(get(addr, "/readyz").await.0, 200);

    controller.signal(Signal::TERM);
    let (_, text) = eventually(DEADLINE, "not ready", async || {
        let answer = get(addr, "/readyz").await;
        if answer.0 == 503 {
            Ok(answer)
        } else {
            Err(answer)
        }
    })
    .await;
    assert!(
        text.contains("[-]shutdown failed: the process is shutting down\n"),
        "{text}"
    );
    assert_eq!(get(addr, "/livez").await.0, 200);
    assert_eq!(controller.logged("stopped"), 0);
    create.pass().await;
    assert_eq!(controller.exit_code().await, 0);
}

/// After a thaw every deadline has passed. The process must not fail its liveness probe for that.
#[tokio::test]
async fn a_thawed_process_lives() {
    let namespace = namespace("thaw").await;
    let args = [
        &format!("--namespace={namespace}"),
        "--leader-election",
        "--lease-name=thaw",
        &format!("--lease-namespace={namespace}"),
        "--lease-duration=2s",
        "--lease-renew-deadline=1s",
        "--lease-retry-period=500ms",
    ];
    let controller = Controller::start(shared(), &args);
    let addr = controller.http_addr().await;
    controller.wait_for_log("gained the lease").await;
    controller.signal(Signal::STOP);
    // Several times the longest iteration of the election loop.
    sleep(Duration::from_secs(5)).await;
    controller.signal(Signal::CONT);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        let (code, text) = get(addr, "/livez?verbose").await;
        assert_eq!(code, 200, "{text}");
    }
    controller.wait_for_log("lost the lease").await;
}

/// Clients that send nothing, half a request or nonsense do not delay the kubelet's probes, and are disconnected.
#[tokio::test]
async fn slow_and_malformed_clients_do_not_delay_probes() {
    let namespace = namespace("slow").await;
    let controller = Controller::start(
        shared(),
        &[
            "--namespace",
            &namespace,
            "--http-metrics-auth",
            "--http-metrics-addr=127.0.0.1:0",
        ],
    );
    let addr = controller.http_addr().await;
    let secure = metrics_addr(&controller).await;
    ready(addr).await;
    let mut slow = Vec::new();
    for sends in [
        "",
        "GET /livez HTTP/1.1\r\nHost:",
        "\0\u{7f}nonsense\r\n\r\n",
    ]
    .repeat(120)
    {
        for addr in [addr, secure] {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.write_all(sends.as_bytes()).await.unwrap();
            slow.push(stream);
        }
        let (code, _) = timeout(PROBE_TIMEOUT, get(addr, "/livez")).await.unwrap();
        assert_eq!(code, 200);
    }
    let answer = timeout(PROBE_TIMEOUT, scrape(secure, None)).await.unwrap();
    assert_eq!(answer.0, 401);
    let sockets = std::fs::read_dir(format!("/proc/{}/fd", controller.pid())).unwrap();
    assert!(sockets.count() < 2 * 256 + 50, "connections are limited");
    eventually(DEADLINE, "all are cut off", async || {
        let open = slow.iter().filter(|stream| {
            let read = stream.try_read(&mut [0; 1024]);
            read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        });
        match open.count() {
            0 => Ok(()),
            open => Err(open),
        }
    })
    .await;
}

#[tokio::test]
async fn long_headers_are_rejected() {
    let namespace = namespace("long").await;
    let controller = Controller::start(shared(), &["--namespace", &namespace]);
    let addr = controller.http_addr().await;
    for headers in [
        format!("A: {}\r\n", "a".repeat(20_000)),
        "A: a\r\n".repeat(1000),
    ] {
        let stream = TcpStream::connect(addr).await.unwrap();
        let (code, text) = exchange(stream, &format!("GET /livez HTTP/1.1\r\n{headers}\r\n")).await;
        assert_eq!(code, 431, "{text}");
    }
    let stream = TcpStream::connect(addr).await.unwrap();
    let token = "a".repeat(8000);
    let request = format!("GET /livez HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n");
    assert_eq!(exchange(stream, &request).await.0, 200);
}

/// Returns the address of metrics over TLS.
async fn metrics_addr(controller: &Controller) -> SocketAddr {
    controller.metrics_addr().await
}

/// Accepts any certificate, like a scraper with `insecure_skip_verify`.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

async fn connect(addr: SocketAddr) -> tokio_rustls::client::TlsStream<TcpStream> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let stream = TcpStream::connect(addr).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap()
}

async fn scrape(addr: SocketAddr, token: Option<&str>) -> Answer {
    get_with(addr, "/metrics", token).await
}

async fn get_with(addr: SocketAddr, path: &str, token: Option<&str>) -> Answer {
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    let token = token.unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nHost: it\r\n{token}\r\n");
    exchange(connect(addr).await, &request).await
}

/// Returns an overlay of the base and the component `metrics-auth`, as a user would write it.
fn overlay() -> TempDir {
    let overlay = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let depth = overlay.path().canonicalize().unwrap().components().count() - 1;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .canonicalize()
        .unwrap();
    // Kustomize accepts no absolute path.
    let deploy = format!("{}..{}/deploy", "../".repeat(depth - 1), root.display());
    let kustomization = json!({
        "resources": [format!("{deploy}/base")],
        "components": [format!("{deploy}/components/metrics-auth")],
    });
    std::fs::write(
        overlay.path().join("kustomization.yaml"),
        kustomization.to_string(),
    )
    .unwrap();
    overlay
}

/// Returns a kubeconfig with this token.
fn kubeconfig(cluster: &Cluster, token: &str) -> std::path::PathBuf {
    let admin = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&admin).unwrap();
    kubeconfig["users"][0]["user"]["token"] = token.into();
    let path = cluster.ready().dir.join("controller.kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    path
}

/// The controller has only the permissions of the base and of `metrics-auth`. Scrapes have no token, an invalid token, a token
/// without the permission, or a valid token with the permission. Also checks the number of reviews, and the responses while the
/// API server is down.
#[allow(clippy::too_many_lines, reason = "one server, asked by everybody")]
#[tokio::test]
async fn metrics_need_a_token_with_the_permission() {
    const CONTROLLER: &str = "system:serviceaccount:foo-system:foo-controller";
    let cluster = Cluster::start(Options {
        audit: true,
        controllers: false,
    });
    let kubectl = async |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        cluster.kubectl(&args).await.success()
    };
    cluster.install_crd().await;
    let overlay = overlay();
    kubectl(&format!("apply -k {}", overlay.path().display())).await;
    let env = kubectl(
        "get deployment/foo-controller -n foo-system -o=jsonpath={.spec.template.spec.containers[0].env}",
    )
    .await;
    let switch = json!({"name": "FOO_CONTROLLER__HTTP__METRICS_AUTH", "value": "true"});
    let env: Vec<Value> = serde_json::from_str(&env).unwrap();
    assert!(env.contains(&switch), "{env:?}");
    let token = kubectl("create token foo-controller -n foo-system").await;
    let controllers = token.trim();
    let own = kubeconfig(&cluster, controllers);
    let controller = Controller::spawn(|command: &mut Command| {
        command
            .env("KUBECONFIG", own)
            .env(
                switch["name"].as_str().unwrap(),
                switch["value"].as_str().unwrap(),
            )
            .env("FOO_CONTROLLER__HTTP__METRICS_ADDR", "127.0.0.1:0")
            .env("FOO_CONTROLLER__HTTP__DEBUG_STATE", "true")
            .env(
                "FOO_CONTROLLER__LOG__LEVEL",
                "trace,kube_client=trace,hyper=trace",
            );
    });
    let addr = metrics_addr(&controller).await;
    ready(controller.http_addr().await).await;
    for path in ["/metrics", "/debug/state"] {
        assert_eq!(get(controller.http_addr().await, path).await.0, 404);
    }

    let (code, text) = scrape(addr, None).await;
    assert!(
        code == 401 && text.contains("\r\nwww-authenticate: Bearer\r\n"),
        "{text}"
    );
    let (code, text) = scrape(addr, Some("made-up")).await;
    let challenge = "\r\nwww-authenticate: Bearer error=\"invalid_token\"\r\n";
    assert!(code == 401 && text.contains(challenge), "{text}");

    kubectl("create serviceaccount prometheus").await;
    let token = kubectl("create token prometheus").await;
    let token = token.trim();
    let (code, text) = scrape(addr, Some(token)).await;
    let name = "\"system:serviceaccount:default:prometheus\" may not get /metrics";
    assert!(code == 403 && text.contains(name), "{text}");

    kubectl(
        "create clusterrolebinding prometheus --clusterrole=foo-controller-metrics-reader --serviceaccount=default:prometheus",
    )
    .await;
    eventually(DEADLINE, "allowed", async || {
        let answer = scrape(addr, Some(token)).await;
        if answer.0 == 200 { Ok(()) } else { Err(answer) }
    })
    .await;
    let reviews = || {
        let of_ours = |event: &&cluster::AuditEvent| {
            event.user == CONTROLLER
                && ["tokenreviews", "subjectaccessreviews"].contains(&&*event.resource)
        };
        cluster.audit().iter().filter(of_ours).count()
    };
    let before = reviews();
    // 1 for the invalid token, 2 for each denial of Prometheus (two if the permission took effect late), 2 for the approval.
    assert!((5..=7).contains(&before), "{before} reviews");
    for _ in 0..20 {
        assert_eq!(scrape(addr, Some(token)).await.0, 200);
    }
    assert_eq!(reviews(), before, "answers are kept");

    // The state names objects, so it needs another permission. The controller has that permission, for `doctor`.
    assert_eq!(get_with(addr, "/debug/state", None).await.0, 401);
    let (code, text) = get_with(addr, "/debug/state", Some(token)).await;
    let role = "may not get /debug/state; bind the ClusterRole foo-controller-state-reader to it";
    assert!(code == 403 && text.contains(role), "{text}");
    let (code, text) = get_with(addr, "/debug/state", Some(controllers)).await;
    let state: Value = serde_json::from_str(body(&text)).unwrap();
    assert_eq!((code, &state["fence"]["open"]), (200, &json!(true)));
    assert_eq!(scrape(addr, Some(controllers)).await.0, 403);

    // While 60 invalid tokens arrive per second, a new valid one is accepted.
    let attack = tokio::spawn(async move {
        let mut next = tokio::time::interval(Duration::from_secs(1) / 60);
        let mut asking = tokio::task::JoinSet::new();
        for number in 0.. {
            next.tick().await;
            // Must not match a part of a UUID in the log.
            asking.spawn(async move { scrape(addr, Some(&format!("bad-token-{number}"))).await });
        }
    });
    for _ in 0..5 {
        let new = kubectl("create token prometheus").await;
        let (code, text) = scrape(addr, Some(new.trim())).await;
        assert_eq!(code, 200, "{text}");
        assert_eq!(scrape(addr, Some(token)).await.0, 200);
    }
    attack.abort();

    cluster.kill_apiserver().await;
    assert_eq!(scrape(addr, Some(token)).await.0, 200, "kept");
    let (code, text) = scrape(addr, Some("another")).await;
    assert!(
        code == 503 && text.contains("access review failed"),
        "{text}"
    );
    assert_eq!(scrape(addr, Some("one-more")).await.0, 503);
    assert_eq!(controller.logged("access review failed: "), 1);
    assert_eq!(get(controller.http_addr().await, "/livez").await.0, 200);
    let log = controller.log();
    let is_told = |line: &&str| {
        let tokens = [token, controllers, "made-up", "bad-token-"];
        tokens.iter().any(|token| line.contains(token))
    };
    assert_eq!(log.lines().find(is_told), None, "no token is logged");
}

/// Without the permission for reviews, the response names the component that grants it.
#[tokio::test]
async fn a_missing_review_permission_is_reported() {
    let namespace = namespace("review").await;
    let kubectl = async |args: &[&str]| shared().kubectl(args).await.success();
    kubectl(&["-n", &namespace, "create", "serviceaccount", "nobody"]).await;
    let token = kubectl(&["-n", &namespace, "create", "token", "nobody"]).await;
    let path = kubeconfig(shared(), token.trim());
    let controller = Controller::spawn(|command| {
        command.env("KUBECONFIG", path).args([
            "--namespace",
            &namespace,
            "--http-metrics-auth",
            "--http-metrics-addr=127.0.0.1:0",
        ]);
    });
    let addr = metrics_addr(&controller).await;
    let (code, text) = scrape(addr, Some("any")).await;
    assert!(
        code == 500 && text.contains("install the component metrics-auth"),
        "{text}"
    );
}

/// Writes a certificate to `folder`, in the format of cert-manager's Secret.
fn write_certificate(folder: &Path) -> Vec<u8> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let der = made.cert.der().to_vec();
    let key = Pem::new("PRIVATE KEY", made.signing_key.serialize_der());
    std::fs::write(
        folder.join("tls.crt"),
        pem::encode(&Pem::new("CERTIFICATE", der.clone())),
    )
    .unwrap();
    std::fs::write(folder.join("tls.key"), pem::encode(&key)).unwrap();
    der
}

/// A rotated certificate is loaded without a restart. An invalid one is logged, and the previous one stays.
#[tokio::test]
async fn a_rotated_certificate_is_served() {
    let namespace = namespace("rotate").await;
    let folder = tempfile::tempdir().unwrap();
    let first = write_certificate(folder.path());
    let dir = format!("--http-metrics-cert-dir={}", folder.path().display());
    let controller = Controller::start(
        shared(),
        &[
            "--namespace",
            &namespace,
            "--http-metrics-auth",
            "--http-metrics-addr=127.0.0.1:0",
            &dir,
        ],
    );
    let addr = metrics_addr(&controller).await;
    let served = async || {
        let stream = connect(addr).await;
        let (_, connection) = stream.get_ref();
        connection.peer_certificates().unwrap()[0].to_vec()
    };
    assert_eq!(served().await, first);
    let key = std::fs::read(folder.path().join("tls.key")).unwrap();
    write_certificate(folder.path());
    std::fs::write(folder.path().join("tls.key"), key).unwrap();
    controller
        .wait_for_log("keeping the previous one: tls.crt and tls.key in ")
        .await;
    assert_eq!(served().await, first);
    let second = write_certificate(folder.path());
    controller.wait_for_log("with a new certificate").await;
    assert_eq!(served().await, second);
}

/// An invalid certificate at the start is a configuration error.
#[tokio::test]
async fn a_useless_certificate_ends_it_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let dir = format!("--http-metrics-cert-dir={}", folder.path().display());
    let files: [(&[&str], &str); 3] = [
        (&[], "cannot read "),
        (&["tls.key", "tls.crt"], "tls.crt in "),
        (&["tls.key"], "tls.key in "),
    ];
    for (broken, says) in files {
        if !broken.is_empty() {
            write_certificate(folder.path());
        }
        for file in broken {
            std::fs::write(folder.path().join(file), "nonsense").unwrap();
        }
        let mut controller = Controller::start(shared(), &["--http-metrics-auth", &dir]);
        assert_eq!(controller.exit_code().await, 2);
        let log = controller.log();
        let line = log.lines().last().unwrap();
        assert!(
            line.starts_with(&format!("error: http.metrics_cert_dir: {says}")),
            "{line}"
        );
    }
}
