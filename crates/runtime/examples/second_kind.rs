//! A complete operator for another resource type.
//!
//! Each `Relay` gets a `ConfigMap` with its configuration and a `Service`, both of the same name. Its spec names a `Secret`
//! with a token, which the `Relay` does not own. Each `Relay` is also registered outside the cluster, as a file in a folder. A
//! finalizer removes the file.

use std::{
    collections::BTreeMap, fs, io, path::PathBuf, process::ExitCode, sync::Arc, time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::{CustomResource, CustomResourceExt as _};
use operator_runtime::{
    ApiError, App, Builder, Custom, Dependent, Fields, Finalizer, Key, Kind, Outcome, Plan,
    Reconciler, References, Reported as _, Select, Snapshot, Spec, Status, Store, View, Writer,
    config::{self, Rule},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const FOLDER: Rule = Rule::Text(|path| path.starts_with('/'), "an absolute path");
const REGISTRY: config::Key =
    config::Key::new("registry", "FOLDER", FOLDER, "Where Relays are registered");

/// Label of the `ConfigMaps` of this operator. It watches no other ones.
const MANAGED: &str = "app.kubernetes.io/managed-by=relay-operator";

pub(crate) static APP: App = App {
    about: "Each Relay gets a ConfigMap, a Service and a place in the registry",
    defaults: "registry = '/var/lib/relays'",
    keys: &[REGISTRY],
    crates: &["second_kind"],
    ..App::new("relay-operator", "0.1.0", "example.com")
};

fn main() -> ExitCode {
    let build = |program: &mut Builder, settings: Settings| {
        declare(program, Arc::new(Folder(settings.registry)));
    };
    operator_runtime::main(&APP, || vec![Manifest::crd()], build)
}

/// The cached form of a Relay.
type Relay = Custom<RelaySpec>;

#[derive(Deserialize)]
struct Settings {
    registry: PathBuf,
}

/// Declares the watched and the owned resource types. Only referenced Secrets are read, and the releases of
/// Helm, which are large, are not even listed.
pub(crate) fn declare(program: &mut Builder, registry: Arc<dyn Registry>) {
    let secrets = Select::fields("type!=helm.sh/release.v1").referenced_only();
    program.select::<Dependent<Credentials>>(secrets);
    program.select::<Dependent<Configuration>>(Select::labels(MANAGED));
    program.controller("relay", |builder| RelayReconciler {
        finalizer: builder.finalizer("example.com/registered"),
        config_maps: builder.owns(),
        services: builder.owns(),
        secrets: builder.watches(),
        registry,
    });
}

#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Relay")]
#[kube(namespaced, root = "Manifest", status = "Status")]
#[serde(rename_all = "camelCase")]
pub(crate) struct RelaySpec {
    #[schemars(range(min = 1, max = 65535))]
    pub(crate) port: i32,
    pub(crate) secret_name: String,
}

impl Spec for RelaySpec {
    const KIND: Kind = Kind::custom("example.com", "v1", "Relay", "relays");
    type Status = Status;

    /// The Secret, and the objects of the Relay's name, because another owner may have them.
    fn references(&self, to: &mut References<'_>) {
        to.sibling::<Dependent<Configuration>>(to.key().name());
        to.sibling::<Dependent<Address>>(to.key().name());
        to.sibling::<Dependent<Credentials>>(&self.secret_name);
    }
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Configuration {
    data: BTreeMap<String, String>,
}

impl Fields for Configuration {
    const KIND: Kind = Kind::of::<ConfigMap>();
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Address {
    spec: Value,
}

impl Fields for Address {
    const KIND: Kind = Kind::of::<Service>();
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
struct Credentials {
    data: BTreeMap<String, String>,
}

impl Fields for Credentials {
    const KIND: Kind = Kind::of::<Secret>();
}

struct RelayReconciler {
    finalizer: Finalizer<Relay>,
    config_maps: Writer<Dependent<Configuration>>,
    services: Writer<Dependent<Address>>,
    secrets: Arc<Store<Dependent<Credentials>>>,
    registry: Arc<dyn Registry>,
}

impl Reconciler for RelayReconciler {
    type Primary = Relay;
    type Error = ApiError;

    fn plan(&self, cx: &View<'_, Relay>, relay: &Snapshot<Relay>) -> Result<Plan<Relay>, ApiError> {
        let (mut plan, key) = (Plan::new(), cx.key());
        let (registry, place) = (Arc::clone(&self.registry), key.clone());
        plan.finalizer(&self.finalizer, !relay.view.deleting);
        if relay.view.deleting {
            plan.outside(&self.finalizer, move || registry.remove(&place));
            return Ok(plan);
        }
        let spec = relay.view.spec()?;
        let port = spec.port;
        let token = self.token(key, spec)?;
        let data = BTreeMap::from([(FILE.to_owned(), content(port, &token))]);
        (plan.apply(&self.config_maps, key, &Configuration { data })).exactly("data");
        let spec = json!({ "selector": { "relay": key.name() }, "ports": [{ "port": port }] });
        plan.apply(&self.services, key, &Address { spec })
            .initially(|| json!({ "spec": { "clusterIP": "None" } }))
            .exactly("spec.ports");
        if registry.port(&place) != Some(port) {
            plan.outside(&self.finalizer, move || registry.set(&place, port));
        }
        plan.again_after(Duration::from_mins(5)); // No watch reports a change of the registry.
        Ok(plan)
    }

    fn status(
        &self,
        cx: &View<'_, Relay>,
        relay: &Snapshot<Relay>,
        outcome: &Outcome<'_, ApiError>,
    ) -> Option<Status> {
        let found = match outcome.error {
            Some(ApiError::Waiting(missing)) => (false, "Missing", missing.clone()),
            _ => (true, "Found", String::new()),
        };
        let ready = outcome.verdict((true, "Made", String::new()));
        let (old, generation, now) = (&relay.view.status, relay.view.generation, cx.now());
        let status = old.with(generation, "CredentialsFound", found, now);
        Some(status.with(generation, "Ready", ready, now))
    }
}

impl RelayReconciler {
    /// Returns the token in the Secret.
    fn token(&self, key: &Key, spec: &RelaySpec) -> Result<String, ApiError> {
        let secret = self.secrets.get(&key.sibling(&spec.secret_name));
        let token = secret.and_then(|secret| secret.view.fields.data.get("token").cloned());
        let missing = || ApiError::Waiting(format!("no token in Secret {:?}", spec.secret_name));
        token.ok_or_else(missing)
    }
}

/// Name of the file in the `ConfigMap`.
pub(crate) const FILE: &str = "relay.conf";

/// Returns the file, with the hash of the token.
pub(crate) fn content(port: i32, token: &str) -> String {
    let token = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
    format!("listen {port}\ntoken {token:?}\n")
}

/// The registry outside the cluster.
pub(crate) trait Registry: Send + Sync {
    /// Returns the port of a registered Relay.
    fn port(&self, relay: &Key) -> Option<i32>;
    fn set(&self, relay: &Key, port: i32) -> io::Result<()>;
    fn remove(&self, relay: &Key) -> io::Result<()>;
}

/// A folder with a file for each Relay.
struct Folder(PathBuf);

impl Folder {
    /// Returns the file of a Relay, `<namespace>/<name>`. Both together may be too long for one file name.
    fn place(&self, relay: &Key) -> PathBuf {
        self.0.join(relay.namespace()).join(relay.name())
    }
}

impl Registry for Folder {
    fn port(&self, relay: &Key) -> Option<i32> {
        fs::read_to_string(self.place(relay)).ok()?.parse().ok()
    }

    fn set(&self, relay: &Key, port: i32) -> io::Result<()> {
        let place = self.place(relay);
        place.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&place, port.to_string())
    }

    fn remove(&self, relay: &Key) -> io::Result<()> {
        match fs::remove_file(self.place(relay)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}
