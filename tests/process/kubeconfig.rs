//! Kubeconfigs and certificates: the controller accepts them like kubectl, or logs one line with the cause. kubectl and the
//! controller load each of them, and send a request to one API server with each type of certificate. docs/operations.md has the
//! same table.

use std::{
    error::Error,
    ffi::OsString,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use foo_controller::APP;
use futures::{StreamExt as _, stream};
use http::Request;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, client::Body};
use operator_runtime::{Config, Host, client::Cluster as Way, election::Clock};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    process::Command,
    time::timeout,
};

use crate::support::foos::audited_alone;

const DEADLINE: Duration = Duration::from_secs(30);

/// Rows that run concurrently.
const AT_ONCE: usize = 4;

/// A type of kubeconfig or certificate: a row of the table in docs/operations.md.
struct Row {
    what: &'static str,
    /// Whether kubectl accepts it.
    kubectl: bool,
    /// Part of the controller's error message, if the controller rejects it.
    refused: Option<&'static str>,
    /// Whether the controller accepts it with the feature `aws-lc-rs`.
    by_aws_lc: bool,
    given: Given,
}

/// Makes a kubeconfig from a valid one.
enum Given {
    /// Changes its content.
    Changed(fn(&Here, &mut Value)),
    /// Changes its encoding.
    Text(fn(&str) -> Vec<u8>),
    /// Makes several files, and returns the value of `$KUBECONFIG`.
    Files(fn(&Here, Value) -> String),
}

use Given::{Changed, Files, Text};

const fn both(what: &'static str, given: Given) -> Row {
    Row {
        what,
        kubectl: true,
        refused: None,
        by_aws_lc: false,
        given,
    }
}

const fn kubectl_alone(what: &'static str, refused: &'static str, given: Given) -> Row {
    Row {
        what,
        kubectl: true,
        refused: Some(refused),
        by_aws_lc: false,
        given,
    }
}

/// Accepted by kubectl, and by the controller with the feature `aws-lc-rs`.
const fn not_by_ring(what: &'static str, refused: &'static str, given: Given) -> Row {
    Row {
        by_aws_lc: true,
        ..kubectl_alone(what, refused, given)
    }
}

const fn neither(what: &'static str, refused: &'static str, given: Given) -> Row {
    Row {
        what,
        kubectl: false,
        refused: Some(refused),
        by_aws_lc: false,
        given,
    }
}

const fn controller_alone(what: &'static str, given: Given) -> Row {
    Row {
        what,
        kubectl: false,
        refused: None,
        by_aws_lc: false,
        given,
    }
}

/// Directories of one kubeconfig and of the certificates.
struct Here {
    folder: PathBuf,
    certificates: PathBuf,
    port: u16,
    /// Port of a proxy to the API server.
    proxy: u16,
    /// Token of a service account. It stands for the ID token of an OIDC provider.
    jwt: String,
}

impl Here {
    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.folder.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn pem(&self, name: &str) -> String {
        self.certificates.join(name).display().to_string()
    }

    /// Writes an exec plugin that prints this value if the command `needs` succeeds.
    fn plugin(&self, needs: &str, prints: &Value) -> Value {
        self.write("printed", prints.to_string());
        let script = format!("#!/bin/sh\ncd \"$(dirname \"$0\")\" && {needs} && cat printed\n");
        let path = self.write("plugin", script);
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        json!({ "apiVersion": V1, "command": "./plugin", "interactiveMode": "IfAvailable" })
    }
}

const V1: &str = "client.authentication.k8s.io/v1";
const V1BETA1: &str = "client.authentication.k8s.io/v1beta1";

fn cluster(config: &mut Value) -> &mut Value {
    &mut config["clusters"][0]["cluster"]
}

fn user(config: &mut Value) -> &mut Value {
    &mut config["users"][0]["user"]
}

/// Makes the API server present the certificate `name`, with `ca` in the CA bundle.
fn served(here: &Here, config: &mut Value, name: &str, ca: &str) {
    let cluster = cluster(config);
    cluster["tls-server-name"] = format!("{name}.test").into();
    cluster["certificate-authority"] = here.pem(&format!("{ca}.crt")).into();
}

/// Gives the user the client certificate `name`.
fn client(here: &Here, config: &mut Value, name: &str) {
    *user(config) = json!({
        "client-certificate": here.pem(&format!("{name}.crt")),
        "client-key": here.pem(&format!("{name}.key")),
    });
}

fn base64(file: &str) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    STANDARD.encode(fs::read(file).unwrap())
}

/// Removes the path of a file, and returns the file's content.
fn inline(part: &mut Value, key: &str) -> String {
    let file = part[key].take();
    part.as_object_mut().unwrap().remove(key);
    base64(file.as_str().unwrap())
}

fn credential(status: &Value) -> Value {
    json!({ "apiVersion": V1, "kind": "ExecCredential", "status": status })
}

fn token(config: &Value) -> Value {
    config["users"][0]["user"]["token"].clone()
}

/// Gives the user an exec plugin that prints the user's token. `change` modifies the plugin's configuration.
fn exec(here: &Here, config: &mut Value, needs: &str, change: fn(&mut Value)) {
    let mut plugin = here.plugin(needs, &credential(&json!({ "token": token(config) })));
    change(&mut plugin);
    *user(config) = json!({ "exec": plugin });
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // Files.
    both("JSON, or YAML", Changed(|_, _| {})),
    both("YAML with an anchor and a merge key", Text(|text| {
        let config: Value = serde_json::from_str(text).unwrap();
        format!("x: &user {{ user: {} }}\nusers: [{{ name: {}, <<: *user }}]\nclusters: {}\ncontexts: {}\ncurrent-context: {}\n",
            config["users"][0]["user"], config["users"][0]["name"], config["clusters"], config["contexts"], config["current-context"]).into()
    })),
    both("a key twice in one map: the last counts", Text(|text| text.replacen('{', r#"{ "current-context": "none","#, 1).into())),
    both("UTF-8 with a byte order mark", Text(|text| [b"\xEF\xBB\xBF", text.as_bytes()].concat())),
    both("UTF-16, as PowerShell writes it", Text(|text| {
        text.encode_utf16().fold(vec![0xFF, 0xFE], |mut all, unit| { all.extend(unit.to_le_bytes()); all })
    })),
    both("a second document in the file: it is ignored", Text(|text| format!("{text}\n---\nclusters: 1\n").into())),
    both("no `kind` and `apiVersion`", Changed(|_, config| {
        config.as_object_mut().unwrap().retain(|key, _| key != "kind" && key != "apiVersion");
    })),
    both("unknown fields and extensions", Changed(|_, config| {
        config["extensions"] = json!([{ "name": "a", "extension": { "b": 1 } }]);
        cluster(config)["another"] = 1.into();
    })),
    both("several files in `$KUBECONFIG`, some missing, some empty", Files(|here, config| {
        let missing = here.folder.join("missing").display().to_string();
        let users = here.write("users", json!({ "users": config["users"] }).to_string());
        let other = json!({ "clusters": config["clusters"], "contexts": config["contexts"], "current-context": config["current-context"] });
        [missing, here.write("empty", ""), users, String::new(), here.write("other", other.to_string())].join(":")
    })),
    both("an entry in several files: the first counts, whole", Files(|here, mut config| {
        let first = here.write("first", config.to_string());
        cluster(&mut config)["server"] = "https://127.0.0.1:1".into();
        cluster(&mut config)["proxy-url"] = "http://127.0.0.1:1".into();
        config["current-context"] = "none".into();
        [first, here.write("second", config.to_string())].join(":")
    })),
    controller_alone("an entry twice in one file", Changed(|_, config| {
        let mut again = config["clusters"][0].clone();
        again["cluster"]["server"] = "https://127.0.0.1:1".into();
        config["clusters"].as_array_mut().unwrap().push(again);
    })),
    both("entries that are not used, and wrong", Changed(|_, config| {
        config["contexts"].as_array_mut().unwrap().push(json!({ "name": "a", "context": {} }));
        config["users"].as_array_mut().unwrap().push(json!({ "name": "a", "user": { "exec": { "interactiveMode": "?" } } }));
        config["clusters"].as_array_mut().unwrap().push(json!({ "name": "a", "cluster": null }));
    })),
    neither("`current-context` empty", "current-context is not set", Changed(|_, config| config["current-context"] = "".into())),
    neither("`current-context` without its context", "there is no context", Changed(|_, config| config["current-context"] = "a".into())),
    neither("a context whose cluster is missing", "there is no cluster", Changed(|_, config| config["contexts"][0]["context"]["cluster"] = "a".into())),
    neither("a context whose user is missing", "there is no user", Changed(|_, config| config["contexts"][0]["context"]["user"] = "a".into())),
    neither("no `server`", "url is missing", Changed(|_, config| cluster(config)["server"] = "".into())),
    // The cluster.
    neither("`server` without a scheme, with a CA", "write https://", Changed(|here, config| {
        cluster(config)["server"] = format!("127.0.0.1:{}", here.port).into();
    })),
    both("`server` with an IPv6 address", Changed(|here, config| {
        cluster(config)["server"] = format!("https://[::1]:{}", here.port).into();
        // The default certificate has no other address.
        cluster(config)["tls-server-name"] = "127.0.0.1".into();
    })),
    both("`server` with a slash at its end", Changed(|here, config| {
        cluster(config)["server"] = format!("https://127.0.0.1:{}/", here.port).into();
    })),
    both("relative paths, relative to their file", Changed(|here, config| {
        let ca = fs::read(cluster(config)["certificate-authority"].as_str().unwrap()).unwrap();
        here.write("ca.crt", ca);
        cluster(config)["certificate-authority"] = "ca.crt".into();
    })),
    both("`certificate-authority-data`", Changed(|_, config| {
        let data = inline(cluster(config), "certificate-authority");
        cluster(config)["certificate-authority-data"] = data.into();
    })),
    both("base64 with line breaks", Changed(|_, config| {
        let data = inline(cluster(config), "certificate-authority");
        let lines: Vec<_> = data.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        cluster(config)["certificate-authority-data"] = (lines.join("\r\n") + "\n").into();
    })),
    neither("base64 with blanks", "decode base64", Changed(|_, config| {
        let data = inline(cluster(config), "certificate-authority");
        cluster(config)["certificate-authority-data"] = data.replacen("LS0t", "LS0t ", 1).into();
    })),
    controller_alone("`certificate-authority-data` and `certificate-authority`: the data counts", Changed(|here, config| {
        let data = inline(cluster(config), "certificate-authority");
        cluster(config)["certificate-authority-data"] = data.into();
        cluster(config)["certificate-authority"] = here.pem("ca.crt").into();
    })),
    both("`insecure-skip-tls-verify`", Changed(|_, config| {
        cluster(config).as_object_mut().unwrap().remove("certificate-authority");
        cluster(config)["insecure-skip-tls-verify"] = true.into();
    })),
    neither("`insecure-skip-tls-verify` and a CA", "remove one of them", Changed(|_, config| cluster(config)["insecure-skip-tls-verify"] = true.into())),
    both("`disable-compression`", Changed(|_, config| cluster(config)["disable-compression"] = true.into())),
    // A proxy may forward a write after the end of its term.
    kubectl_alone("`proxy-url`", "proxies are not supported", Changed(|here, config| {
        // The API server can be reached only through the proxy.
        cluster(config)["server"] = "https://127.0.0.1:1".into();
        cluster(config)["proxy-url"] = format!("http://127.0.0.1:{}", here.proxy).into();
    })),
    // The user.
    both("`token` and `tokenFile`: the file counts", Changed(|here, config| {
        here.write("token", format!("{}\n", token(config).as_str().unwrap()));
        *user(config) = json!({ "token": "none", "tokenFile": "token" });
    })),
    both("`token` and a `tokenFile` that does not exist", Changed(|_, config| user(config)["tokenFile"] = "missing".into())),
    controller_alone("`token`, and `username` and `password`: the API server has no passwords", Changed(|_, config| user(config)["username"] = "a".into())),
    kubectl_alone("`auth-provider: oidc`", "use an exec plugin", Changed(|here, config| {
        let settings = json!({ "idp-issuer-url": "https://issuer.test", "client-id": "a", "id-token": here.jwt });
        *user(config) = json!({ "auth-provider": { "name": "oidc", "config": settings } });
    })),
    neither("another `auth-provider`, such as `gcp`", "use an exec plugin", Changed(|_, config| {
        *user(config) = json!({ "auth-provider": { "name": "gcp" } });
    })),
    both("`as`, `as-groups`, `as-uid` and `as-user-extra`", Changed(|_, config| {
        user(config)["as"] = "somebody".into();
        user(config)["as-groups"] = json!(["system:masters"]);
        user(config)["as-uid"] = "1".into();
        user(config)["as-user-extra"] = json!({ "Example.com/a b": ["c"] });
    })),
    neither("`as-groups` without `as`", "set `as`", Changed(|_, config| user(config)["as-groups"] = json!(["system:masters"]))),
    // Exec plugins.
    both("an exec plugin of `v1`", Changed(|here, config| exec(here, config, "true", |_| {}))),
    both("an exec plugin of `v1beta1`, without `interactiveMode`", Changed(|here, config| {
        exec(here, config, "true", |plugin| *plugin = json!({ "apiVersion": V1BETA1, "command": "./plugin" }));
        let printed = fs::read_to_string(here.folder.join("printed")).unwrap();
        here.write("printed", printed.replace(V1, V1BETA1));
    })),
    both("an exec plugin with `args`, `env` and `provideClusterInfo`", Changed(|here, config| {
        let needs = r#"[ "$1$A" = bc ] && echo "$KUBERNETES_EXEC_INFO" | grep -q '"server":"https://127' && ! echo "$KUBERNETES_EXEC_INFO" | grep -q proxy"#;
        exec(here, config, needs, |plugin| {
            plugin["args"] = json!(["b"]);
            plugin["env"] = json!([{ "name": "A", "value": "c" }]);
            plugin["provideClusterInfo"] = true.into();
        });
    })),
    both("an exec plugin that prints a client certificate", Changed(|here, config| {
        let pem = |name: &str| fs::read_to_string(here.pem(name)).unwrap();
        let status = json!({ "clientCertificateData": pem("client-p256.crt"), "clientKeyData": pem("client-p256.key") });
        *user(config) = json!({ "exec": here.plugin("true", &credential(&status)) });
    })),
    both("an exec plugin beside a `token`: it is not run", Changed(|here, config| {
        user(config)["exec"] = here.plugin("false", &Value::Null);
    })),
    neither("an exec plugin of another `apiVersion`", "set client.authentication.k8s.io/v1", Changed(|here, config| {
        exec(here, config, "true", |plugin| plugin["apiVersion"] = "client.authentication.k8s.io/v1alpha1".into());
    })),
    neither("an exec plugin that prints another `apiVersion`", "it printed credentials of apiVersion", Changed(|here, config| {
        exec(here, config, "true", |plugin| plugin["apiVersion"] = V1BETA1.into());
    })),
    neither("an exec plugin that needs a terminal (`interactiveMode: Always`)", "standard input is not a terminal", Changed(|here, config| {
        exec(here, config, "true", |plugin| plugin["interactiveMode"] = "Always".into());
    })),
    neither("an exec plugin that is not installed: its `installHint` is shown", "; get it there", Changed(|here, config| {
        exec(here, config, "true", |plugin| {
            plugin["command"] = "no-such-plugin".into();
            plugin["installHint"] = "get it\nthere".into();
        });
    })),
    neither("an exec plugin that fails", "it failed", Changed(|here, config| exec(here, config, "false", |_| {}))),
    neither("an exec plugin that prints no credentials", "neither a token nor", Changed(|here, config| {
        *user(config) = json!({ "exec": here.plugin("true", &credential(&json!({}))) });
    })),
    // The API server's certificate.
    both("a server's key of P-256", Changed(|here, config| served(here, config, "p256", "ca"))),
    both("… of P-384", Changed(|here, config| served(here, config, "p384", "ca"))),
    not_by_ring("… of P-521", "type of the server's key may not be supported; supported are", Changed(|here, config| served(here, config, "p521", "ca"))),
    both("… of Ed25519", Changed(|here, config| served(here, config, "ed25519", "ca"))),
    both("… of RSA with 2048 bits", Changed(|here, config| served(here, config, "rsa2048", "ca"))),
    kubectl_alone("… of RSA with 1024 bits", "signature of the handshake is invalid, or made with an RSA key of fewer than 2048 bits", Changed(|here, config| served(here, config, "rsa1024", "ca"))),
    both("issued by RSA-PSS", Changed(|here, config| served(here, config, "by-rsa-pss", "ca-rsa"))),
    not_by_ring("issued by P-384 with SHA-512", "unsupported signature algorithm", Changed(|here, config| served(here, config, "by-p384-sha512", "ca-p384"))),
    not_by_ring("issued by P-521", "unsupported signature algorithm", Changed(|here, config| served(here, config, "by-p521", "ca-p521"))),
    kubectl_alone("a certificate for `*.test`, a name of one label", "not valid for name", Changed(|here, config| served(here, config, "wildcard", "ca"))),
    both("with an intermediate authority", Changed(|here, config| served(here, config, "chained", "ca"))),
    neither("without its intermediate authority", "not issued by a configured certificate authority", Changed(|here, config| served(here, config, "unchained", "ca"))),
    both("several authorities in the bundle, with text between them, and an invalid one", Changed(|here, config| {
        served(here, config, "p256", "ca");
        let pem = |name: &str| fs::read_to_string(here.pem(name)).unwrap();
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        here.write("bundle", [&pem("ca-rsa.crt"), "text\n", broken, &pem("ca.crt")].concat());
        cluster(config)["certificate-authority"] = "bundle".into();
    })),
    neither("a CA bundle without a certificate", "no readable certificate", Changed(|here, config| {
        here.write("bundle", "text");
        cluster(config)["certificate-authority"] = "bundle".into();
    })),
    both("an authority with name constraints, within them", Changed(|here, config| served(here, config, "permitted", "ca-test"))),
    neither("an authority with name constraints, outside of them", "NameConstraintViolation", Changed(|here, config| served(here, config, "forbidden", "ca-example"))),
    both("a self-signed certificate in the bundle, with `CA:TRUE`", Changed(|here, config| served(here, config, "self", "self"))),
    both("a self-signed certificate in the bundle, without", Changed(|here, config| served(here, config, "self-no-ca", "self-no-ca"))),
    neither("a self-signed certificate with `CA:TRUE` that has expired", "expired", Changed(|here, config| served(here, config, "self-expired", "self-expired"))),
    neither("… for another name", "not valid for name", Changed(|here, config| served(here, config, "self-elsewhere", "self-elsewhere"))),
    neither("… that is not in the bundle", "a CA certificate that is not in the CA bundle", Changed(|here, config| served(here, config, "self", "ca"))),
    neither("a certificate that has expired", "expired", Changed(|here, config| served(here, config, "expired", "ca"))),
    neither("a certificate that is not valid yet", "not valid yet", Changed(|here, config| served(here, config, "early", "ca"))),
    neither("a certificate for another name", "not valid for name", Changed(|here, config| served(here, config, "elsewhere", "ca"))),
    neither("a certificate with its name in CN alone", "not valid for name", Changed(|here, config| served(here, config, "common-name", "ca"))),
    neither("a certificate for clients", "server authentication", Changed(|here, config| served(here, config, "for-clients", "ca"))),
    // Client certificates.
    both("a client's key of P-256 in PKCS #8", Changed(|here, config| client(here, config, "client-p256"))),
    both("… of P-256 in SEC 1, after its parameters", Changed(|here, config| client(here, config, "client-sec1"))),
    both("… of P-384", Changed(|here, config| client(here, config, "client-p384"))),
    not_by_ring("… of P-521", "the type of the key is not supported", Changed(|here, config| client(here, config, "client-p521"))),
    both("… of Ed25519", Changed(|here, config| client(here, config, "client-ed25519"))),
    both("… of RSA in PKCS #1", Changed(|here, config| client(here, config, "client-pkcs1"))),
    kubectl_alone("… of RSA with 1024 bits", "the type of the key is not supported", Changed(|here, config| client(here, config, "client-rsa1024"))),
    both("a client certificate of X.509 version 1 (MicroK8s)", Changed(|here, config| client(here, config, "client-v1"))),
    both("`client-certificate-data` and `client-key-data`", Changed(|here, config| {
        client(here, config, "client-p256");
        let (cert, key) = (inline(user(config), "client-certificate"), inline(user(config), "client-key"));
        *user(config) = json!({ "client-certificate-data": cert + "\n", "client-key-data": key + "\n" });
    })),
    neither("a client key with a passphrase", "openssl pkey", Changed(|here, config| client(here, config, "client-encrypted"))),
    neither("another certificate's key", "the key does not match the certificate", Changed(|here, config| {
        client(here, config, "client-p256");
        user(config)["client-key"] = here.pem("client-sec1.key").into();
    })),
    neither("a client certificate without a key", "no client-key", Changed(|here, config| {
        client(here, config, "client-p256");
        user(config).as_object_mut().unwrap().remove("client-key");
    })),
    neither("a client certificate that has expired", "Unauthorized", Changed(|here, config| client(here, config, "client-expired"))),
];

/// Names of the certificates that the API server presents.
const SERVERS: [&str; 23] = [
    "p256",
    "p384",
    "p521",
    "ed25519",
    "rsa1024",
    "rsa2048",
    "expired",
    "early",
    "elsewhere",
    "common-name",
    "wildcard",
    "for-clients",
    "chained",
    "unchained",
    "self",
    "self-expired",
    "self-elsewhere",
    "self-no-ca",
    "by-p384-sha512",
    "by-p521",
    "by-rsa-pss",
    "permitted",
    "forbidden",
];

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfigs_of_kubectl_are_accepted_or_explained() {
    let certificates = tempfile::tempdir().unwrap();
    let generator =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/process/kubeconfig/certificates.go");
    let mut generate = Command::new("go");
    generate.args([
        "run".as_ref(),
        generator.as_os_str(),
        certificates.path().as_os_str(),
    ]);
    assert!(
        generate
            .env("GOFLAGS", "")
            .env("GOWORK", "off")
            .status()
            .await
            .unwrap()
            .success()
    );
    let api = audited_alone().await;
    let pem = |name: &str| certificates.path().join(name).display().to_string();
    let mut flags = vec![
        // IPv6 and IPv4.
        "--bind-address=::".to_owned(),
        format!("--client-ca-file={}", pem("ca-clients.crt")),
    ];
    flags.extend(SERVERS.map(|name| {
        let (cert, key) = (pem(&format!("{name}.crt")), pem(&format!("{name}.key")));
        format!("--tls-sni-cert-key={cert},{key}:{name}.test")
    }));
    let base = api.start_second_apiserver_with(&flags.join(" ")).await;
    let base: Value = serde_json::from_slice(&fs::read(base).unwrap()).unwrap();
    let address: http::Uri = base["clusters"][0]["cluster"]["server"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let kubectl = api.ready().bin.join("kubectl");
    let port = address.port_u16().unwrap();
    let proxy = proxy(port).await;
    let run = async |line: &str| {
        let args: Vec<_> = line.split(' ').collect();
        api.kubectl(&args).await.success()
    };
    run("create serviceaccount reader -n default").await;
    run("create clusterrolebinding reader --clusterrole=cluster-admin --serviceaccount=default:reader")
        .await;
    let jwt = run("create token reader -n default").await;
    let tried = ROWS.iter().map(|row| {
        let here = Here {
            folder: PathBuf::new(),
            certificates: certificates.path().to_owned(),
            port,
            proxy,
            jwt: jwt.trim().to_owned(),
        };
        try_row(row, here, base.clone(), &kubectl)
    });
    let wrong: Vec<_> = stream::iter(tried)
        .buffered(AT_ONCE)
        .filter_map(async |wrong| wrong)
        .collect()
        .await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Starts an HTTP proxy that connects to this port for every CONNECT. Returns the port of the proxy.
async fn proxy(to: u16) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.unwrap());
                }
                assert!(head.starts_with(b"CONNECT "));
                let answer = b"HTTP/1.1 200 OK\r\n\r\n";
                client.write_all(answer).await.unwrap();
                let mut server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}

/// Returns the difference between the results and the row.
async fn try_row(row: &Row, mut here: Here, mut base: Value, kubectl: &Path) -> Option<String> {
    let folder: TempDir = tempfile::tempdir().unwrap();
    here.folder = folder.path().to_owned();
    let variable = match row.given {
        Changed(change) => {
            change(&here, &mut base);
            here.write("config", base.to_string())
        }
        Text(text) => here.write("config", text(&base.to_string())),
        Files(files) => files(&here, base),
    };
    let mut command = Command::new(kubectl);
    command.args([
        "--request-timeout=20s",
        "get",
        "--raw",
        "/api/v1/namespaces/default",
    ]);
    command
        .env("KUBECONFIG", &variable)
        .env("HOME", &here.folder);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(DEADLINE, command.output())
        .await
        .expect(row.what)
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() != row.kubectl {
        return Some(format!("{}: kubectl: {}: {said}", row.what, output.status));
    }
    let got = timeout(DEADLINE, get(&variable)).await.expect(row.what);
    let refused = row
        .refused
        .filter(|_| !(row.by_aws_lc && cfg!(feature = "aws-lc-rs")));
    match (got, refused) {
        (Ok(()), None) => None,
        (Err(error), Some(words))
            if error.contains(words) && error.len() < 400 && !error.contains('\n') =>
        {
            None
        }
        (got, _) => Some(format!(
            "{}: the controller: {got:?}; kubectl: {said}",
            row.what
        )),
    }
}

/// Sends the same request with the controller's client. Returns the innermost error.
async fn get(kubeconfig: &str) -> Result<(), String> {
    let innermost = |error: &dyn Error| {
        let mut error = error;
        while let Some(source) = error.source() {
            error = source;
        }
        error.to_string()
    };
    let variables = [("KUBECONFIG".into(), OsString::from(kubeconfig))];
    let host = Host::new(Clock::boottime(), Timestamp::now, || 0, variables);
    let way = Way::find(&APP, &host, &Config::shipped(&APP)).await;
    let way = way.map_err(|error| error.to_string())?;
    let client = Client::new(way.requests, way.namespace);
    let request = Request::get("/api/v1/namespaces/default")
        .body(Body::empty())
        .unwrap();
    let answer = client
        .send(request)
        .await
        .map_err(|error| innermost(&error))?;
    match answer.status().as_u16() {
        200 => Ok(()),
        401 => Err("Unauthorized".to_owned()),
        code => Err(code.to_string()),
    }
}

/// The table of the documentation has the same rows.
#[test]
fn the_docs_have_the_same_table() {
    let rows = ROWS.iter().map(|row| {
        let kubectl = if row.kubectl { "yes" } else { "no" };
        let controller = row
            .refused
            .map_or("yes".to_owned(), |words| format!("no: “{words}”"));
        let option = if row.by_aws_lc {
            " (yes with `aws-lc-rs`)"
        } else {
            ""
        };
        format!("| {} | {kubectl} | {controller}{option} |\n", row.what)
    });
    let table = rows.collect::<String>();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
    let docs = fs::read_to_string(docs).unwrap();
    assert!(
        docs.contains(&table),
        "docs/operations.md is to have:\n{table}"
    );
}
