//! An operator with a kind that may not be installed, and a kind that it reads without a watch.
//!
//! A `Shop` gets a `ConfigMap` of its name. While the CRD of the Prometheus operator is installed, it also gets a
//! `ServiceMonitor`. Its spec names a `StorageClass`, which must exist.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use k8s_openapi::api::{core::v1::ConfigMap, storage::v1::StorageClass};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt as _};
use operator_runtime::{
    ApiError, App, Builder, Custom, Dependent, Exists, Fields, Key, Kind, Live, Plan, Reconciler,
    Snapshot, Spec, Status, View, Writer,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) static APP: App = App {
    about: "Each Shop gets a ConfigMap and a ServiceMonitor",
    crates: &["optional_kind"],
    ..App::new("shop-operator", "0.1.0", "example.com")
};

fn main() -> ExitCode {
    operator_runtime::main(&APP, crds, build)
}

pub(crate) fn crds() -> Vec<CustomResourceDefinition> {
    vec![Manifest::crd()]
}

/// This program has no settings of its own.
#[derive(Deserialize)]
pub(crate) struct NoSettings {}

pub(crate) fn build(program: &mut Builder, _: NoSettings) {
    program.controller("shop", |builder| ShopReconciler {
        config_maps: builder.owns(),
        monitors: builder.if_installed().owns(),
        classes: builder.reads(),
    });
}

type Shop = Custom<ShopSpec>;

#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Shop")]
#[kube(namespaced, root = "Manifest", status = "Status")]
struct ShopSpec {
    /// Name of the `StorageClass`.
    storage: String,
}

impl Spec for ShopSpec {
    const KIND: Kind = Kind::custom("example.com", "v1", "Shop", "shops");
    type Status = Status;
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Data {
    data: BTreeMap<String, String>,
}

impl Fields for Data {
    const KIND: Kind = Kind::of::<ConfigMap>();
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Monitor {
    spec: Value,
}

impl Fields for Monitor {
    const KIND: Kind = Kind::custom(
        "monitoring.coreos.com",
        "v1",
        "ServiceMonitor",
        "servicemonitors",
    );
}

struct ShopReconciler {
    config_maps: Writer<Dependent<Data>>,
    monitors: Writer<Dependent<Monitor>>,
    classes: Live<Exists<StorageClass>>,
}

impl Reconciler for ShopReconciler {
    type Primary = Shop;
    type Error = ApiError;

    fn plan(&self, cx: &View<'_, Shop>, shop: &Snapshot<Shop>) -> Result<Plan<Shop>, ApiError> {
        let (mut plan, key) = (Plan::new(), cx.key());
        if shop.view.deleting {
            return Ok(plan); // The garbage collector deletes the objects.
        }
        let storage = &shop.view.spec()?.storage;
        let class = cx.live(
            &self.classes,
            &Key::cluster(storage),
            Duration::from_mins(10),
        )?;
        if class.is_none() {
            // No watch reports its creation: the first resync after ten minutes reads it again.
            return Err(ApiError::Waiting(format!("no StorageClass {storage:?}")));
        }
        let data = BTreeMap::from([("storage".to_owned(), storage.clone())]);
        plan.apply(&self.config_maps, key, &Data { data });
        if self.monitors.is_installed(cx.key()) {
            let endpoints = json!([{ "port": "metrics" }]);
            let labels = json!({ "shop": key.name() });
            let spec = json!({ "selector": { "matchLabels": labels }, "endpoints": endpoints });
            plan.apply(&self.monitors, key, &Monitor { spec });
        }
        Ok(plan)
    }
}
