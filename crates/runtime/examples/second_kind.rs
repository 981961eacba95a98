//! A complete operator for another resource type.
//!
//! Each `Relay` gets a `ConfigMap` with its configuration and a `Service`, both of the same name. Its spec names a `Secret`
//! with a token, which the `Relay` does not own. Each `Relay` is also registered outside the cluster, as a file in a folder. A
//! finalizer removes the file.

use std::{collections::BTreeMap, fs, io, path::PathBuf, process::ExitCode, sync::Arc};

use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret, Service},
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::Timestamp,
};
use kube::{CustomResource, CustomResourceExt as _};
use operator_runtime::{
    Action, ApiError, App, Builder, Context, Custom, Dependent, Event, Failure as _, Fields,
    Finalizer, Key, Kind, Reconciler, References, Snapshot, Spec, Store, Writer, condition,
    config::{self, Rule},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const FOLDER: Rule = Rule::Text(|path| path.starts_with('/'), "an absolute path");
const REGISTRY: config::Key =
    config::Key::new("registry", "FOLDER", FOLDER, "Where Relays are registered");

static APP: App = App {
    about: "Each Relay gets a ConfigMap, a Service and a place in the registry",
    defaults: "registry = '/var/lib/relays'",
    keys: &[REGISTRY],
    crates: &["second_kind"],
    ..App::new("relay-operator", "0.1.0", "example.com")
};

fn main() -> ExitCode {
    operator_runtime::main(&APP, || vec![Manifest::crd()], build)
}

/// The cached form of a Relay.
type Relay = Custom<RelaySpec>;

#[derive(Deserialize)]
struct Settings {
    registry: PathBuf,
}

/// Declares the watched and the owned resource types.
fn build(program: &mut Builder, settings: Settings) {
    program.controller("relay", |builder| RelayReconciler {
        relays: builder.primary(),
        finalizer: builder.finalizer("example.com/registered"),
        config_maps: builder.owns(),
        services: builder.owns(),
        secrets: builder.watches(),
        registry: settings.registry,
    });
}

#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Relay")]
#[kube(namespaced, root = "Manifest", status = "RelayStatus")]
#[serde(rename_all = "camelCase")]
struct RelaySpec {
    #[schemars(range(min = 1, max = 65535))]
    port: i32,
    secret_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
struct RelayStatus {
    observed_generation: Option<i64>,
    conditions: Vec<Condition>,
}

impl Spec for RelaySpec {
    const KIND: Kind = Kind::custom("example.com", "v1", "Relay", "relays");
    type Status = RelayStatus;

    /// The Secret, and the objects of the Relay's name, because another owner may have them.
    fn references(&self, to: &mut References<'_>) {
        to.sibling::<Dependent<Configuration>>(to.key().name());
        to.sibling::<Dependent<Address>>(to.key().name());
        to.sibling::<Dependent<Credentials>>(&self.secret_name);
    }

    fn observed_generation(status: &RelayStatus) -> Option<i64> {
        status.observed_generation
    }
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
struct Configuration {
    data: BTreeMap<String, String>,
}

impl Fields for Configuration {
    const KIND: Kind = Kind::of::<ConfigMap>();
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
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
    relays: Arc<Writer<Relay>>,
    finalizer: Finalizer<Relay>,
    config_maps: Writer<Dependent<Configuration>>,
    services: Writer<Dependent<Address>>,
    secrets: Arc<Store<Dependent<Credentials>>>,
    registry: PathBuf,
}

/// The desired state for a Relay.
struct Desired {
    port: i32,
    data: BTreeMap<String, String>,
    place: PathBuf,
}

impl Desired {
    fn configuration(&self, actual: &Dependent<Configuration>) -> Option<Value> {
        (actual.fields.data != self.data).then(|| json!({ "data": self.data }))
    }

    fn address(&self, actual: &Dependent<Address>) -> Option<Value> {
        let is_right = actual.fields.spec["ports"][0]["port"] == self.port;
        let ports = json!([{ "$patch": "replace" }, { "port": self.port }]);
        (!is_right).then(|| json!({ "spec": { "ports": ports } }))
    }

    fn register(&self) -> io::Result<()> {
        self.place.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&self.place, self.port.to_string())
    }

    fn is_registered(&self) -> bool {
        fs::read_to_string(&self.place).is_ok_and(|port| port == self.port.to_string())
    }
}

impl Reconciler for RelayReconciler {
    type Primary = Relay;
    type Error = ApiError;

    async fn reconcile(
        &self,
        cx: &Context<'_, Relay>,
        relay: &Snapshot<Relay>,
    ) -> Result<Action, ApiError> {
        if relay.view.deleting {
            if self.finalizer.is_set(relay) {
                let undo = || match fs::remove_file(self.place(cx.key())) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                    removed => removed,
                };
                self.finalizer.outside(cx, undo).await?;
                self.finalizer.clear(cx, relay).await?;
            }
            return Ok(Action::Done);
        }
        let relay = &self.finalizer.set(cx, relay).await?;
        let desired = self.plan(cx.key(), &relay.view);
        let made = match &desired {
            Ok(desired) => self.make(cx, desired).await,
            Err(_) => Ok(()),
        };
        let (missing, error) = (desired.as_ref().err(), made.as_ref().err());
        if let Some(status) = status(&relay.view, missing, error, cx.now()) {
            let event = error.map_or(Event::normal("Synced", "Relay synced"), Event::failed);
            self.relays.report(cx, relay, &status, event).await?;
        }
        made.map(|()| Action::After(std::time::Duration::from_mins(5))) // No watch reports a change of the file.
    }
}

impl RelayReconciler {
    /// Returns the file of a Relay, `<namespace>/<name>`. Both together may be too long for one file name.
    fn place(&self, key: &Key) -> PathBuf {
        self.registry.join(key.namespace()).join(key.name())
    }

    /// Returns the desired state, or a message if the spec is invalid or the token is missing.
    fn plan(&self, key: &Key, relay: &Relay) -> Result<Desired, String> {
        let spec = relay.spec.as_ref().map_err(Clone::clone)?;
        let secret = self.secrets.get(&key.sibling(&spec.secret_name));
        let token = secret.and_then(|secret| secret.view.fields.data.get("token").cloned());
        let token = token.ok_or_else(|| format!("no token in Secret {:?}", spec.secret_name))?;
        let token = ring::digest::digest(&ring::digest::SHA256, token.as_bytes());
        let file = format!("listen {}\ntoken {token:?}\n", spec.port);
        Ok(Desired {
            port: spec.port,
            data: BTreeMap::from([("relay.conf".to_owned(), file)]),
            place: self.place(key),
        })
    }

    async fn make(&self, cx: &Context<'_, Relay>, desired: &Desired) -> Result<(), ApiError> {
        let (key, port) = (cx.key(), desired.port);
        let new = json!({ "data": desired.data });
        let plan = |actual: &_| desired.configuration(actual);
        self.config_maps.ensure(cx, key, new, plan).await?;
        let (selector, ports) = (json!({ "relay": key.name() }), json!([{ "port": port }]));
        let spec = json!({ "clusterIP": "None", "selector": selector, "ports": ports });
        let plan = |actual: &_| desired.address(actual);
        (self.services.ensure(cx, key, json!({ "spec": spec }), plan)).await?;
        if !desired.is_registered() {
            self.finalizer.outside(cx, || desired.register()).await?;
        }
        Ok(())
    }
}

/// Returns the status, or `None` for a transient error.
fn status(
    relay: &Relay,
    missing: Option<&String>,
    error: Option<&ApiError>,
    now: Timestamp,
) -> Option<RelayStatus> {
    let there = (true, "Found", String::new());
    let found = missing.map_or(there, |what| (false, "Missing", what.clone()));
    let ready = match error {
        Some(error) => (false, error.reason()?, error.to_string()),
        None if found.0 => (true, "Made", String::new()),
        None => (false, "Waiting", found.2.clone()),
    };
    let (old, generation) = (&relay.status.conditions, relay.generation);
    Some(RelayStatus {
        observed_generation: Some(generation),
        conditions: vec![
            condition(old, generation, "CredentialsFound", found, now),
            condition(old, generation, "Ready", ready, now),
        ],
    })
}
