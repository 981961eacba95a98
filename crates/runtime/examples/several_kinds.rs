//! An operator of three kinds: databases, their classes and their backups, each with a controller of its own.
//!
//! A `Database` gets a `Deployment` and a `Service` of its name. Its `DatabaseClass`, which is cluster-scoped, determines the
//! replicas, and a `Secret` contains the password, perhaps in another namespace that grants the access. With `spec.backup`, it also owns a `Backup`.
//!
//! A `Backup`, of a `Database` or of a user, becomes a `Job` once its `Database` is ready.
//!
//! A `DatabaseClass` gets a `ConfigMap` with its values, in the namespace that it specifies.
//!
//! All three controllers share one election and one watch for each kind.

use std::{collections::BTreeMap, process::ExitCode, sync::Arc};

use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job, core::v1 as core};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResource, CustomResourceExt as _};
use operator_runtime::{
    ApiError, App, Builder, Custom, Dependent, Fields, Key, Kind, ObjectRef, Outcome, Plan,
    Reconciler, References, Reported as _, Select, Snapshot, Spec, Status, Store, View, Writer,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) static APP: App = App {
    about: "Databases, their classes and their backups",
    crates: &["several_kinds"],
    ..App::new("database-operator", "0.1.0", "example.com")
};

fn main() -> ExitCode {
    operator_runtime::main(&APP, crds, build)
}

pub(crate) fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        DatabaseObject::crd(),
        ClassObject::crd(),
        BackupObject::crd(),
    ]
}

/// This program has no settings of its own.
#[derive(Deserialize)]
pub(crate) struct NoSettings {}

pub(crate) fn build(program: &mut Builder, _: NoSettings) {
    // A cluster has many Secrets, and a replica reads the contents of a few.
    program.select::<Dependent<Password>>(Select::default().referenced_only());
    program.controller("database", |builder| {
        builder.deletes::<Backup>();
        DatabaseReconciler {
            deployments: builder.owns(),
            services: builder.owns(),
            backups: builder.owns(),
            classes: builder.watches(),
            passwords: builder.watches(),
        }
    });
    program.controller("databaseclass", |builder| ClassReconciler {
        config_maps: builder.owns(),
    });
    program.controller("backup", |builder| BackupReconciler {
        jobs: builder.owns(),
        databases: builder.watches(),
    });
}

// The kinds of this operator.

type Database = Custom<DatabaseSpec>;
type Class = Custom<ClassSpec>;
type Backup = Custom<BackupSpec>;

#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Database", namespaced)]
#[kube(root = "DatabaseObject", status = "Status")]
struct DatabaseSpec {
    /// Name of the `DatabaseClass`.
    class: String,
    /// Secret with the key `password`. In another namespace, its annotation `example.com/grant-to` must contain this one.
    password: ObjectRef,
    /// Target of the backup. If absent, there is none.
    backup: Option<String>,
}

impl Spec for DatabaseSpec {
    const KIND: Kind = Kind::custom("example.com", "v1", "Database", "databases");
    type Status = Status;

    /// Also the objects of the Database's name, because another owner may have them.
    fn references(&self, to: &mut References<'_>) {
        to.cluster::<Class>(&self.class);
        to.object::<Dependent<Password>>(&self.password);
        to.sibling::<Dependent<Workload>>(to.key().name());
        to.sibling::<Dependent<Address>>(to.key().name());
        to.sibling::<Backup>(to.key().name());
    }
}

#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "DatabaseClass")]
#[kube(root = "ClassObject", status = "Status")]
struct ClassSpec {
    #[schemars(range(min = 1, max = 5))]
    replicas: i32,
    /// Namespace of the `ConfigMap`.
    namespace: String,
}

impl Spec for ClassSpec {
    const KIND: Kind =
        Kind::custom("example.com", "v1", "DatabaseClass", "databaseclasses").cluster_scoped();
    type Status = Status;

    fn references(&self, to: &mut References<'_>) {
        to.object::<Dependent<Values>>(&ObjectRef::new(&self.namespace, to.key().name()));
    }
}

#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Backup", namespaced)]
#[kube(root = "BackupObject", status = "Status")]
struct BackupSpec {
    /// Name of the `Database`.
    database: String,
    target: String,
}

impl Spec for BackupSpec {
    const KIND: Kind = Kind::custom("example.com", "v1", "Backup", "backups");
    type Status = Status;

    fn references(&self, to: &mut References<'_>) {
        to.sibling::<Database>(&self.database);
        to.sibling::<Dependent<Run>>(to.key().name());
    }
}

// The kinds of Kubernetes, with the fields that this operator sets or reads.

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Workload {
    spec: Value,
    /// Only read.
    #[serde(default, skip_serializing)]
    status: Value,
}

impl Fields for Workload {
    const KIND: Kind = Kind::of::<Deployment>();
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Address {
    spec: Value,
}

impl Fields for Address {
    const KIND: Kind = Kind::of::<core::Service>();
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Run {
    spec: Value,
}

impl Fields for Run {
    const KIND: Kind = Kind::of::<Job>();
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Values {
    data: BTreeMap<String, String>,
}

impl Fields for Values {
    const KIND: Kind = Kind::of::<core::ConfigMap>();
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
struct Password {
    data: BTreeMap<String, String>,
}

impl Fields for Password {
    const KIND: Kind = Kind::of::<core::Secret>();
}

// The controllers.

struct DatabaseReconciler {
    deployments: Writer<Dependent<Workload>>,
    services: Writer<Dependent<Address>>,
    backups: Writer<Backup>,
    classes: Arc<Store<Class>>,
    passwords: Arc<Store<Dependent<Password>>>,
}

impl Reconciler for DatabaseReconciler {
    type Primary = Database;
    type Error = ApiError;

    fn plan(
        &self,
        cx: &View<'_, Database>,
        database: &Snapshot<Database>,
    ) -> Result<Plan<Database>, ApiError> {
        let (mut plan, key) = (Plan::new(), cx.key());
        if database.view.deleting {
            return Ok(plan); // The garbage collector deletes the children.
        }
        let spec = database.view.spec()?;
        let class = cx.require(&self.classes, &Key::cluster(&spec.class))?;
        let secret = cx.granted(&self.passwords, &spec.password)?;
        let password = secret.view.fields.data.get("password");
        let password =
            password.ok_or_else(|| missing("password in Secret", &spec.password.name))?;

        let labels = json!({ "database": key.name() });
        let container = json!({
            "name": "database",
            "image": "registry.example.com/database:1",
            // Another password restarts the pods.
            "args": ["--password-hash", hash(password)],
        });
        let template = json!({
            "metadata": { "labels": labels },
            "spec": { "containers": [container] },
        });
        let deployment = json!({
            "replicas": class.view.spec()?.replicas,
            "selector": { "matchLabels": labels },
            "template": template,
        });
        plan.apply(&self.deployments, key, &Workload::of(deployment));
        let service = json!({ "selector": labels, "ports": [{ "port": 5432 }] });
        plan.apply(&self.services, key, &Address { spec: service });
        if let Some(target) = &spec.backup {
            let backup = BackupSpec {
                database: key.name().to_owned(),
                target: target.clone(),
            };
            plan.apply(&self.backups, key, &backup);
        }
        plan.prune(&self.backups);
        Ok(plan)
    }

    fn status(
        &self,
        cx: &View<'_, Database>,
        database: &Snapshot<Database>,
        outcome: &Outcome<'_, ApiError>,
    ) -> Option<Status> {
        let deployment = self.deployments.store().get(cx.key());
        let ready = deployment.and_then(|it| it.view.fields.status["readyReplicas"].as_i64());
        let verdict = match ready.unwrap_or(0) {
            0 => (false, "NoPods", "no pod is ready".to_owned()),
            pods => (true, "Deployed", format!("{pods} pods are ready")),
        };
        let (view, verdict) = (&database.view, outcome.verdict(verdict));
        Some(
            view.status
                .with(view.generation, "Ready", verdict, cx.now()),
        )
    }
}

struct ClassReconciler {
    config_maps: Writer<Dependent<Values>>,
}

impl Reconciler for ClassReconciler {
    type Primary = Class;
    type Error = ApiError;

    fn plan(&self, cx: &View<'_, Class>, class: &Snapshot<Class>) -> Result<Plan<Class>, ApiError> {
        let mut plan = Plan::new();
        if !class.view.deleting {
            let spec = class.view.spec()?;
            let data = BTreeMap::from([("replicas".to_owned(), spec.replicas.to_string())]);
            // A cluster-scoped owner: its dependents may be in any watched namespace.
            let key = Key::new(&spec.namespace, cx.key().name());
            plan.apply(&self.config_maps, &key, &Values { data })
                .exactly("data");
        }
        Ok(plan)
    }
}

struct BackupReconciler {
    jobs: Writer<Dependent<Run>>,
    databases: Arc<Store<Database>>,
}

impl Reconciler for BackupReconciler {
    type Primary = Backup;
    type Error = ApiError;

    fn plan(
        &self,
        cx: &View<'_, Backup>,
        backup: &Snapshot<Backup>,
    ) -> Result<Plan<Backup>, ApiError> {
        let (mut plan, key) = (Plan::new(), cx.key());
        if backup.view.deleting {
            return Ok(plan);
        }
        let spec = backup.view.spec()?;
        let database = cx.require(&self.databases, &key.sibling(&spec.database))?;
        let mut conditions = database.view.status.conditions.iter();
        if !conditions.any(|it| it.type_ == "Ready" && it.status == "True") {
            return Err(missing("ready Database", &spec.database));
        }
        let container = json!({
            "name": "backup",
            "image": "registry.example.com/database:1",
            "args": ["backup", spec.database, spec.target],
        });
        let pod = json!({ "containers": [container], "restartPolicy": "Never" });
        // A Job is immutable: it is created, and never changed.
        let spec = json!({ "template": { "spec": pod } });
        plan.create(&self.jobs, key, &Run { spec });
        Ok(plan)
    }
}

impl Workload {
    fn of(spec: Value) -> Self {
        Self {
            spec,
            status: Value::Null,
        }
    }
}

/// The error for an object that the user has yet to create. Its appearance enqueues the objects that reference it.
fn missing(what: &str, name: &str) -> ApiError {
    ApiError::Waiting(format!("no {what} {name:?}"))
}

fn hash(text: &str) -> String {
    format!(
        "{:?}",
        ring::digest::digest(&ring::digest::SHA256, text.as_bytes())
    )
}
