//! Simulates the operator of Relays: `cargo run --profile bench --package operator-simulation --example relay -- --seeds 1000`.

use std::{collections::BTreeMap, io, process::ExitCode, sync::Arc};

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use kube::CustomResourceExt as _;
use operator_runtime::Key;
use operator_simulation::{Draws, Operator, Outside, Subject, Verdict, View, check};
use serde_json::{Value, json};

/// The operator, as it ships.
#[allow(dead_code, reason = "a program of its own")]
#[path = "../../runtime/examples/second_kind.rs"]
mod second_kind;

use second_kind::{APP, FILE, Manifest, Registry, content, declare};

/// The registry outside the cluster: the port of each registered Relay.
#[derive(Clone, Debug, Default)]
struct Registered(BTreeMap<Key, i32>);

impl Registry for Outside<Registered> {
    fn port(&self, relay: &Key) -> Option<i32> {
        self.look(|all| all.0.get(relay).copied())
    }

    fn set(&self, relay: &Key, port: i32) -> io::Result<()> {
        self.act(|all| all.0.insert(relay.clone(), port));
        Ok(())
    }

    fn remove(&self, relay: &Key) -> io::Result<()> {
        self.act(|all| all.0.remove(relay));
        Ok(())
    }
}

struct Relays;

impl Subject for Relays {
    type Object = Manifest;

    fn settled(&self, relay: &Manifest, view: &View<'_>) -> Verdict {
        let secret = view.get::<Secret>(&relay.spec.secret_name);
        let secret = json!(secret.and_then(|secret| secret.data));
        let Some(token) = secret["token"].as_str() else {
            return view.is_condition("Ready", "False", "Waiting");
        };
        let port = relay.spec.port;
        let data = view.owned::<ConfigMap>()?.data.unwrap_or_default();
        let file = data.get(FILE).cloned();
        check(file == Some(content(port, token)), "the file is outdated")?;
        let service = json!(view.owned::<Service>()?);
        let has = &service["spec"]["ports"][0]["port"];
        check(*has == port, "the Service has another port")?;
        let registered = view.outside::<Registered>().0.get(view.key()).copied();
        check(registered == Some(port), "another port is registered")?;
        view.is_condition("Ready", "True", "Made")
    }

    fn gone(&self, key: &Key, view: &View<'_>) -> Verdict {
        let registered = view.outside::<Registered>().0.contains_key(key);
        check(!registered, "it is still registered")
    }

    fn values(&self, field: &str, draw: &mut Draws) -> Option<Value> {
        (field == "spec.secretName").then(|| draw.of(&["a", "b", "missing"]).into())
    }

    fn others(&self, draw: &mut Draws) -> Vec<Value> {
        let mut secret = |name| {
            let token = format!("token {}", draw.below(100));
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
                "stringData": { "token": token },
            })
        };
        vec![secret("a"), secret("b")]
    }
}

/// The operator under simulation.
#[must_use]
pub fn operator() -> Operator {
    Operator::new(&APP, |program, place| {
        declare(program, Arc::new(place.outside::<Registered>()));
    })
    .subject(Manifest::crd(), Relays)
}

#[allow(dead_code, reason = "`simulate` runs it with the other operators")]
fn main() -> ExitCode {
    operator_simulation::main(operator())
}
