//! Isolation of the controllers of one program, the example `several_kinds`: the time from a class to its `ConfigMap`, while the
//! other controllers are disturbed and while they are not. Without a disturbance, another program has it, the Foo controller, so
//! that the API server has the same work.

use std::{future::pending, process::Command, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, PostParams},
    core::ObjectMeta,
};
use operator_testkit::{
    cluster::{bound_command, eventually},
    webhooks::{Does, Webhook},
};
use serde_json::{Value, json};
use tokio::time::{interval, sleep};

use super::{
    load::names,
    plane::{NO_RESYNC, Plane, latencies},
    process::{Subject, built},
    report::{Side, quantile},
    watch::{Object, Watch},
    writes::{self, DEPLOYMENTS, FOOS},
};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const DATABASES: &str = "/apis/example.com/v1/namespaces/default/databases";
const CLASSES: &str = "/apis/example.com/v1/databaseclasses";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Classes of one measurement, and their number in a second.
const COUNT: usize = 500;
const RATE: u32 = 50;

/// Databases, or Foos, whose Deployments cannot be written.
const FAILING: usize = 200;

/// Interval between the deletion of a CRD and its next creation.
const CHANGE: Duration = Duration::from_secs(2);

const PAIRS: usize = 3;
const DEADLINE: Duration = Duration::from_mins(1);

/// The disturbances of the other controllers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Disturbance {
    /// A webhook on Deployments does not respond.
    Hang,
    /// A webhook rejects each Deployment.
    Fail,
    /// The CRD of Backups, which two controllers use, goes and comes back, or another CRD, which none uses.
    Vanish,
}

use Disturbance::{Fail, Hang, Vanish};

/// Measures all disturbances, and prints a table.
pub async fn run() {
    let program = Program::start().await;
    println!("| | p50, ms | p99, ms | p99 of what it is without |\n|---|---|---|---|");
    for disturbance in [Hang, Fail, Vanish] {
        let (mut times, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        for pair in 0..PAIRS {
            let mut found = [Vec::new(), Vec::new()];
            // The order changes.
            for side in [pair % 2, 1 - pair % 2] {
                let name = format!("{disturbance:?}-{pair}-{side}").to_lowercase();
                found[side] = program.measure(&name, disturbance, side == 1).await;
            }
            let [without, with] = found.each_ref().map(|all| quantile(all, 0.99).unwrap());
            ratios.push(with / without);
            for (times, found) in times.iter_mut().zip(found) {
                times.extend(found);
            }
        }
        let [without, with] = times.map(|all| [0.5, 0.99].map(|q| quantile(&all, q).unwrap()));
        println!("| without | {:.1} | {:.1} | |", without[0], without[1]);
        let ratio = quantile(&ratios, 0.5).unwrap();
        println!(
            "| {disturbance:?} | {:.1} | {:.1} | {ratio:.2} {ratios:.2?} |",
            with[0], with[1]
        );
    }
}

struct Program {
    plane: Plane,
    crds: Api<CustomResourceDefinition>,
    /// The CRD of Backups, and one that the program does not use.
    vanishing: [CustomResourceDefinition; 2],
    subject: Subject,
    other: Subject,
}

impl Program {
    async fn start() -> Self {
        let plane = Plane::start().await;
        let example = built("examples/several_kinds");
        let crds = Command::new(&example).arg("crd").output().unwrap().stdout;
        let crds = String::from_utf8(crds).unwrap();
        let unused = crds.replace("backup", "unused").replace("Backup", "Unused");
        for crds in [&unused, &crds] {
            plane.cluster.install_crds(crds).await;
        }
        let client = plane.load.client();
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let read = async |name: &str| {
            let mut crd = crds.get(name).await.unwrap();
            crd.metadata = ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            };
            crd.status = None;
            crd
        };
        let vanishing = [
            read("backups.example.com").await,
            read("unuseds.example.com").await,
        ];
        let secret =
            json!({ "metadata": { "name": "password" }, "stringData": { "password": "a" } });
        writes::create(client, SECRETS, &secret).await;
        create_class(client, "small").await;
        let cluster = &plane.cluster;
        cluster.release_lease("default", "database-operator").await;
        let mut command = bound_command(example);
        command.env_clear().env("DATABASE_OPERATOR__HTTP__ADDR", "");
        let namespace = "DATABASE_OPERATOR__LEADER_ELECTION__LEASE_NAMESPACE";
        command.env(namespace, "default");
        let mut deployments = Watch::new(client, DEPLOYMENTS).await;
        let subject = Subject::spawn(cluster, command, "bench-1");
        create_database(client, "first").await;
        deployments.until(1, |it| it.metadata.name == "first").await;
        subject.rest().await;
        let other = Subject::start(cluster, Side::Ours, "bench-2", NO_RESYNC, &[]);
        writes::create_foo(client, "first-of-others").await;
        let is_there = |it: &Object| it.metadata.name == "first-of-others";
        deployments.until(1, is_there).await;
        Self {
            plane,
            crds,
            vanishing,
            subject,
            other,
        }
    }

    /// Returns the times from each class to its `ConfigMap`, in milliseconds.
    async fn measure(&self, name: &str, disturbance: Disturbance, is_disturbed: bool) -> Vec<f64> {
        let client = self.plane.load.client();
        let failing = names(&format!("{name}-fails"), FAILING);
        let mut webhook = None;
        if disturbance != Vanish {
            let hook = Webhook {
                resources: "apps/v1/deployments",
                does: if disturbance == Hang {
                    Does::Hangs
                } else {
                    Does::Denies
                },
                timeout_seconds: None,
                fails_open: false,
            };
            webhook = Some(hook.install(client, "default").await);
            let create = async |client: &Client, name: &str| {
                if is_disturbed {
                    create_database(client, name).await;
                } else {
                    writes::create_foo(client, name).await;
                }
            };
            self.plane.load.each(&failing, create).await;
        }
        let crd = &self.vanishing[usize::from(!is_disturbed)];
        let vanish = async {
            if disturbance != Vanish {
                pending::<()>().await;
            }
            let mut changes = interval(CHANGE);
            loop {
                changes.tick().await;
                let _ = (self.crds)
                    .delete(&crd.name_any(), &DeleteParams::default())
                    .await;
                changes.tick().await;
                let _ = self.crds.create(&PostParams::default(), crd).await;
            }
        };
        let all = names(name, COUNT);
        let mut config_maps = Watch::new(client, CONFIG_MAPS).await;
        let load = async {
            let created = self.plane.load.at_rate(RATE, &all, create_class).await;
            let is_ours = |name: &String| all.contains(name);
            let done = config_maps.until(COUNT, |it| is_ours(&it.metadata.name));
            latencies(&created, &done.await)
        };
        let times = tokio::select! {
            times = load => times,
            () = vanish => unreachable!("it does not end"),
        };
        if let Some(webhook) = webhook {
            webhook.remove().await;
            let failed = if is_disturbed { DATABASES } else { FOOS };
            for name in &failing {
                writes::delete(client, &format!("{failed}/{name}")).await;
            }
        }
        eventually(DEADLINE, "the CRD is back", async || {
            match self.crds.create(&PostParams::default(), crd).await {
                Ok(_) => Err("created".to_owned()),
                Err(kube::Error::Api(it)) if it.reason == "AlreadyExists" => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
        for name in &all {
            writes::delete(client, &format!("{CLASSES}/{name}")).await;
        }
        writes::delete(client, CONFIG_MAPS).await;
        // The API server calls the removed webhook for up to a second.
        sleep(Duration::from_secs(1)).await;
        self.subject.rest().await;
        self.other.rest().await;
        times
    }
}

async fn create_database(client: &Client, name: &str) {
    let spec = json!({ "class": "small", "password": { "name": "password" } });
    writes::create(client, DATABASES, &object("Database", name, &spec)).await;
}

async fn create_class(client: &Client, name: &str) {
    let spec = json!({ "replicas": 1, "namespace": "default" });
    writes::create(client, CLASSES, &object("DatabaseClass", name, &spec)).await;
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "example.com/v1", "kind": kind, "metadata": { "name": name }, "spec": spec })
}
