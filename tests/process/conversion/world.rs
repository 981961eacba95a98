//! The control plane, the webhook and its users.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::Path,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Client,
    api::{ApiResource, DeleteParams, DynamicObject},
    core::GroupVersionKind,
};
use operator_testkit::cluster::{Cluster, Options, bound_command, example};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::*;
use crate::support::controller::Controller;

pub const CRD: &str = "greetings.example.com";
const GROUP: &str = "example.com";
const PREFIX: &str = "GREETER__";
const CERTIFICATE: &str = "serving with a new certificate";

/// A certificate authority.
#[derive(Clone)]
pub struct Authority(Arc<(Issuer<'static, KeyPair>, String)>);

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap();
        let text = pem("CERTIFICATE", certificate.der());
        Self(Arc::new((Issuer::new(params, key), text)))
    }

    /// Returns its certificate.
    pub fn pem(&self) -> &str {
        &self.0.1
    }
}

fn pem(tag: &str, der: &[u8]) -> String {
    ::pem::encode(&::pem::Pem::new(tag, der))
}

/// A control plane, the processes of the webhook, and their certificate in a folder that is swapped like the volume of a Secret.
pub struct World {
    pub cluster: Cluster,
    client: Client,
    secret: TempDir,
    /// Number of the current folder in `secret`.
    secrets: usize,
    pub authority: Authority,
    pub webhooks: Vec<Controller>,
    /// Addresses of the webhooks that get new connections.
    route: Arc<Mutex<Vec<SocketAddr>>>,
    pub addresses: Vec<SocketAddr>,
    port: u16,
    _balancer: JoinSet<()>,
}

impl World {
    pub async fn start() -> Self {
        let cluster = Cluster::start(Options::default());
        let client = cluster.client().await;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let route = Arc::<Mutex<Vec<SocketAddr>>>::default();
        let mut balancer = JoinSet::new();
        balancer.spawn(balance(listener, Arc::clone(&route)));
        let mut world = Self {
            cluster,
            client,
            secret: tempfile::tempdir().unwrap(),
            secrets: 0,
            authority: Authority::new("first"),
            webhooks: Vec::new(),
            route,
            addresses: Vec::new(),
            port,
            _balancer: balancer,
        };
        world.write_secret();
        for name in ["tls.crt", "tls.key"] {
            symlink(
                Path::new("..data").join(name),
                world.secret.path().join(name),
            )
            .unwrap();
        }
        world
    }

    /// Writes a certificate of the current authority, and swaps the folders as the kubelet does.
    fn write_secret(&mut self) {
        self.secrets += 1;
        let folder = self.secret.path().join(self.secrets.to_string());
        fs::create_dir(&folder).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.authority.0.0).unwrap();
        fs::write(
            folder.join("tls.crt"),
            pem("CERTIFICATE", certificate.der()),
        )
        .unwrap();
        fs::write(
            folder.join("tls.key"),
            pem("PRIVATE KEY", &key.serialize_der()),
        )
        .unwrap();
        let new = self.secret.path().join("..data_tmp");
        symlink(&folder, &new).unwrap();
        fs::rename(new, self.secret.path().join("..data")).unwrap();
    }

    /// Replaces the certificate, and waits until each process serves with the new one.
    pub async fn rotate_certificate(&mut self) {
        let before: Vec<_> = self
            .webhooks
            .iter()
            .map(|it| it.logged(CERTIFICATE))
            .collect();
        self.write_secret();
        for (webhook, before) in self.webhooks.iter().zip(before) {
            eventually(DEADLINE, "the new certificate", async || {
                if webhook.logged(CERTIFICATE) > before {
                    Ok(())
                } else {
                    Err(())
                }
            })
            .await;
        }
    }

    /// Creates another authority for the next certificate, and returns the current one.
    pub fn next_authority(&mut self) -> Authority {
        std::mem::replace(&mut self.authority, Authority::new("second"))
    }

    /// Sets the `caBundle`, as another client than the applier of the CRD.
    pub async fn trust(&self, authorities: &[&Authority]) {
        let all: String = authorities.iter().map(|it| &*it.0.1).collect();
        let config = json!({ "caBundle": BASE64_STANDARD.encode(all) });
        let webhook = json!({ "webhook": { "clientConfig": config } });
        self.patch_crd(&Patch::Merge(json!({ "spec": { "conversion": webhook } })))
            .await;
        // The API server notices a change of a CRD through a watch.
        sleep(Duration::from_secs(2)).await;
    }

    pub async fn patch_crd(&self, patch: &Patch<Value>) {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let params = PatchParams {
            field_manager: Some("cainjector".into()),
            ..PatchParams::default()
        };
        crds.patch(CRD, &params, patch).await.unwrap();
    }

    async fn crd(&self) -> Value {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        serde_json::to_value(crds.get(CRD).await.unwrap()).unwrap()
    }

    pub async fn ca_bundle(&self) -> Value {
        self.crd().await["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"].clone()
    }

    pub async fn stored_versions(&self) -> Vec<String> {
        let versions = self.crd().await["status"]["storedVersions"].clone();
        serde_json::from_value(versions).unwrap()
    }

    /// Returns the output of the command `crd`.
    pub fn printed() -> String {
        let output = Command::new(example("two_versions"))
            .arg("crd")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn crd_on_loopback(&self) -> Value {
        let mut crd: Value = serde_saphyr::from_str(&Self::printed()).unwrap();
        crd["spec"]["conversion"]["webhook"]["clientConfig"] = json!({
            "url": format!("https://localhost:{}/convert", self.port),
            "caBundle": BASE64_STANDARD.encode(&self.authority.0.1),
        });
        crd
    }

    /// Installs the CRD of the release before: with v1alpha1 only.
    pub async fn install_former_only(&self) {
        let mut crd = self.crd_on_loopback();
        crd["spec"].as_object_mut().unwrap().remove("conversion");
        let versions = crd["spec"]["versions"].as_array_mut().unwrap();
        versions.retain(|it| it["name"] == FORMER);
        versions[0]["storage"] = true.into();
        self.install(&crd, &[FORMER]).await;
    }

    pub async fn install_both(&self) {
        self.install(&self.crd_on_loopback(), &[FORMER, CURRENT])
            .await;
    }

    /// Installs the CRD with this version not served, or without it and the conversion.
    pub async fn install_without(&self, version: &str, is_removed: bool) {
        let mut crd = self.crd_on_loopback();
        let spec = crd["spec"].as_object_mut().unwrap();
        if is_removed {
            spec.remove("conversion");
        }
        let versions = spec["versions"].as_array_mut().unwrap();
        versions.retain_mut(|it| {
            let is_this = it["name"] == version;
            it["served"] = (!is_this).into();
            !(is_this && is_removed)
        });
        self.install(&crd, &[]).await;
        let path = format!("/apis/{GROUP}/{version}");
        eventually(DEADLINE, "the version is not served", async || {
            let listed = self.cluster.kubectl(&["get", "--raw", &path]).await;
            if listed.stdout.contains("greetings") {
                Err(listed.stdout)
            } else {
                Ok(())
            }
        })
        .await;
    }

    /// Lets v1 have any spec.
    pub async fn loosen(&self) {
        let mut crd = self.crd_on_loopback();
        let versions = crd["spec"]["versions"].as_array_mut().unwrap();
        let current = versions
            .iter_mut()
            .find(|it| it["name"] == CURRENT)
            .unwrap();
        current["schema"]["openAPIV3Schema"]["properties"]["spec"] =
            json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        self.install(&crd, &[FORMER, CURRENT]).await;
        let bad = greeting("tried", CURRENT, &json!({ "texts": 3 }));
        eventually(DEADLINE, "the schema is in force", async || {
            let apply = ["create", "--dry-run=server", "-f", "-"];
            let tried = self.cluster.kubectl_stdin(&apply, &bad.to_string()).await;
            if tried.status.success() {
                Ok(())
            } else {
                Err(tried.stderr)
            }
        })
        .await;
    }

    async fn install(&self, crd: &Value, versions: &[&str]) {
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        let applied = self.cluster.kubectl_stdin(&apply, &crd.to_string()).await;
        applied.success();
        self.kubectl(&format!(
            "wait --for=condition=Established --timeout=30s crd/{CRD}"
        ))
        .await;
        for version in versions {
            let path = format!("/apis/{GROUP}/{version}");
            eventually(DEADLINE, "the version is served", async || {
                let listed = self.cluster.kubectl(&["get", "--raw", &path]).await;
                if listed.stdout.contains("greetings") {
                    Ok(())
                } else {
                    Err(listed.stderr)
                }
            })
            .await;
        }
    }

    fn spawn(with: impl FnOnce(&mut Command)) -> Controller {
        Controller::spawn_program(example("two_versions"), |command| {
            command
                .env("KUBECONFIG", "/nonexistent")
                .env(format!("{PREFIX}LEADER_ELECTION__ENABLED"), "false")
                .env(format!("{PREFIX}LOG__FORMAT"), "text")
                .env(format!("{PREFIX}HTTP__ADDR"), "127.0.0.1:0");
            with(command);
        })
    }

    pub fn start_controller(&self) -> Controller {
        Self::spawn(|command| {
            command.env("KUBECONFIG", self.cluster.kubeconfig());
        })
    }

    /// Starts a process of the webhook. It gets connections once it is ready.
    pub async fn start_webhook(&mut self) {
        let webhook = Self::spawn(|command| {
            command
                .args(["convert", "--listen=127.0.0.1:0", "--cert-dir"])
                .arg(self.secret.path());
        });
        let line = webhook.wait_for_log("webhook_addr=").await;
        let (_, address) = line.split_once("webhook_addr=").unwrap();
        let address = address.split(' ').next().unwrap().parse().unwrap();
        self.addresses.push(address);
        self.webhooks.push(webhook);
        self.route.lock().unwrap().clone_from(&self.addresses);
    }

    /// Stops a process. For two seconds, it still gets connections, as from a node that does not know yet.
    pub async fn stop_webhook(&mut self, n: usize) {
        let mut webhook = self.webhooks.remove(n);
        self.addresses.remove(n);
        webhook.signal(Signal::TERM);
        sleep(Duration::from_secs(2)).await;
        self.route.lock().unwrap().clone_from(&self.addresses);
        assert_eq!(webhook.exit_code().await, 0, "{}", webhook.log());
        assert_eq!(webhook.logged("stopped before the end"), 0);
    }

    pub fn kill_webhook(&mut self) {
        self.webhooks.clear();
        self.addresses.clear();
        self.route.lock().unwrap().clear();
    }

    pub async fn migrate(&self) {
        let mut migrate = Self::spawn(|command| {
            command
                .env("KUBECONFIG", self.cluster.kubeconfig())
                .arg("migrate");
        });
        assert_eq!(migrate.exit_code().await, 0, "{}", migrate.log());
    }

    /// Returns the line of `doctor` about the CRD, with single spaces.
    pub async fn doctor(&self) -> String {
        let mut command = bound_command(example("two_versions"));
        command
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .env(
                format!("{PREFIX}LEADER_ELECTION__LEASE_NAMESPACE"),
                "default",
            )
            .arg("doctor");
        let output = tokio::process::Command::from(command)
            .output()
            .await
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text
            .lines()
            .find(|line| line.contains("CRD "))
            .unwrap_or_default();
        let words: Vec<_> = line.split_whitespace().collect();
        words
            .join(" ")
            .replacen(&format!("{CRD} "), &format!("{CRD}: "), 1)
    }

    pub async fn kubectl(&self, args: &str) -> String {
        self.kubectl_stdin(args, "").await
    }

    pub async fn kubectl_stdin(&self, args: &str, input: &str) -> String {
        let args: Vec<_> = args.split(' ').collect();
        self.cluster.kubectl_stdin(&args, input).await.success()
    }

    pub fn api(&self, version: &str) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(GROUP, version, "Greeting");
        let resource = ApiResource::from_gvk_with_plural(&kind, "greetings");
        Api::default_namespaced_with(self.client.clone(), &resource)
    }

    pub async fn create(&self, greeting: &Value) {
        self.kubectl_stdin("create -f -", &greeting.to_string())
            .await;
    }

    pub async fn get(&self, name: &str, version: &str) -> Value {
        let got = self.api(version).get(name).await.unwrap();
        let mut value = serde_json::to_value(got).unwrap();
        value["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        value
    }

    /// Waits until the controller has written these texts.
    pub async fn has_config_map(&self, name: &str, texts: &[(&str, &str)]) {
        let texts = texts
            .iter()
            .map(|(language, text)| ((*language).to_owned(), (*text).to_owned()));
        let texts: BTreeMap<_, _> = texts.collect();
        let maps: Api<ConfigMap> = Api::default_namespaced(self.client.clone());
        eventually(DEADLINE, "the ConfigMap", async || {
            let map = maps.get_opt(name).await.unwrap();
            let data = map.and_then(|map| map.data);
            if data.as_ref() == Some(&texts) {
                Ok(())
            } else {
                Err(data)
            }
        })
        .await;
    }
}

/// Passes each new connection to the next address.
async fn balance(listener: TcpListener, route: Arc<Mutex<Vec<SocketAddr>>>) {
    let mut connections = JoinSet::new();
    for turn in 0.. {
        let (mut client, _) = listener.accept().await.unwrap();
        let address = {
            let route = route.lock().unwrap();
            let to = route.get(turn % route.len().max(1));
            to.copied()
        };
        connections.spawn(async move {
            let Some(address) = address else { return };
            if let Ok(mut server) = TcpStream::connect(address).await {
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

pub fn greeting(name: &str, version: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{version}"),
        "kind": "Greeting",
        "metadata": { "name": name, "namespace": "default" },
        "spec": spec,
    })
}

/// Users that create, read, change, list and delete objects in both versions.
pub struct Load {
    users: JoinSet<()>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    ends: AtomicBool,
    requests: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

/// Concurrent users.
const USERS: usize = 6;

impl Load {
    pub async fn start(world: &World) -> Self {
        let counts = Arc::<Counts>::default();
        let mut users = JoinSet::new();
        for user in 0..USERS {
            let counts = Arc::clone(&counts);
            let apis = [world.api(FORMER), world.api(CURRENT)];
            users.spawn(async move {
                for round in 0.. {
                    if counts.ends.load(Relaxed) {
                        return;
                    }
                    if let Err(error) = use_both(&apis, &counts, user, round).await {
                        counts.failures.lock().unwrap().push(error);
                    }
                }
            });
        }
        let load = Self { users, counts };
        load.is_well("the start").await;
        load
    }

    /// Waits for further requests of all users. No request has failed.
    pub async fn is_well(&self, when: &str) {
        const REQUESTS: usize = 20 * USERS;
        let before = self.counts.requests.load(Relaxed);
        eventually(DEADLINE, when, async || {
            let failures = self.counts.failures.lock().unwrap();
            assert!(failures.is_empty(), "{when}: {failures:#?}");
            let requests = self.counts.requests.load(Relaxed) - before;
            if requests >= REQUESTS {
                Ok(())
            } else {
                Err(requests)
            }
        })
        .await;
    }

    /// Ends the load. The controller has made the `ConfigMaps` of all objects that are left.
    pub async fn stop(mut self, world: &World) {
        self.counts.ends.store(true, Relaxed);
        while self.users.join_next().await.is_some() {}
        self.is_ended();
        for user in 0..USERS {
            world
                .has_config_map(&format!("kept-{user}"), &[("de", "Hallo"), ("en", "last")])
                .await;
        }
    }

    fn is_ended(&self) {
        let failures = self.counts.failures.lock().unwrap();
        assert!(failures.is_empty(), "{failures:#?}");
    }
}

/// A round of a user: a new object in one version, changed in the other.
async fn use_both(
    apis: &[Api<DynamicObject>; 2],
    counts: &Counts,
    user: usize,
    round: usize,
) -> Result<(), String> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: kube::Error| format!("user {user}, round {round}: {what}: {error:?}")
    };
    let count = |requests| counts.requests.fetch_add(requests, Relaxed);
    let name = match round {
        0 => format!("kept-{user}"),
        _ => format!("load-{user}-{round}"),
    };
    let [former, current] = apis;
    let spec = json!({ "texts": { "de": "Hallo", "en": format!("{round}") } });
    let object = serde_json::from_value(greeting(&name, CURRENT, &spec)).unwrap();
    let created = current.create(&PostParams::default(), &object).await;
    created.map_err(failed("create"))?;
    let read = former.get(&name).await.map_err(failed("get"))?;
    if read.data["spec"] != json!({ "text": format!("{round}") }) {
        return Err(format!("{name}: {read:?}"));
    }
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "round": round.to_string() } } }));
    let patched = former.patch(&name, &PatchParams::default(), &patch).await;
    patched.map_err(failed("patch in v1alpha1"))?;
    let patch = Patch::Merge(json!({ "spec": { "texts": { "en": "last" } } }));
    let patched = current.patch(&name, &PatchParams::default(), &patch).await;
    let patched = patched.map_err(failed("patch in v1"))?;
    if patched.data["spec"] != json!({ "texts": { "de": "Hallo", "en": "last" } }) {
        return Err(format!("{name}: {patched:?}"));
    }
    for api in apis {
        let list = api
            .list(&ListParams::default())
            .await
            .map_err(failed("list"))?;
        if !list
            .items
            .iter()
            .any(|it| it.metadata.name.as_ref() == Some(&name))
        {
            return Err(format!("{name} is not listed"));
        }
    }
    count(6);
    if round > 0 {
        former
            .delete(&name, &DeleteParams::default())
            .await
            .map_err(failed("delete"))?;
        count(1);
    }
    Ok(())
}
