//! A new, warmed-up control plane for each run, and a leading controller on it.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::{
    load::{Load, names},
    process::Subject,
    report::Side,
    watch::{Object, Watch},
    writes::{self, DEPLOYMENTS, FOOS},
};
use operator_testkit::cluster::{Cluster, Options};

/// Resync interval that never elapses during a run.
pub const NO_RESYNC: Duration = Duration::from_hours(10);

/// Control plane that has already handled some requests of each kind.
pub struct Plane {
    pub load: Load,
    pub cluster: Cluster,
}

impl Plane {
    pub async fn start() -> Self {
        let cluster = Cluster::start(Options {
            audit: true,
            controllers: false,
        });
        cluster.install_crd().await;
        let load = Load::new(&cluster).await;
        load.each(&names("warm", 100), async |client, name| {
            let foo = writes::create_foo(client, name).await;
            writes::create_deployment(client, &foo).await;
            writes::report(client, &foo).await;
            writes::create_event(client, &foo).await;
        })
        .await;
        for resource in [FOOS, DEPLOYMENTS] {
            writes::delete(load.client(), resource).await;
        }
        let plane = Self { load, cluster };
        plane.release_lease().await;
        plane
    }

    /// Releases the Lease, so that neither side waits to take it. Without a Lease, this controller would wait for a lease
    /// duration.
    pub async fn release_lease(&self) {
        self.cluster
            .release_lease("default", "foo-controller")
            .await;
    }
}

/// Leading controller on a control plane, and watches on its results.
pub struct Run<'a> {
    pub plane: &'a Plane,
    pub side: Side,
    pub subject: Subject,
    pub deployments: Watch,
    pub foos: Watch,
}

impl<'a> Run<'a> {
    pub async fn start(plane: &'a Plane, side: Side, more: &[&str]) -> Self {
        let client = plane.load.client();
        let mut deployments = Watch::new(client, DEPLOYMENTS).await;
        let foos = Watch::new(client, FOOS).await;
        let subject = Subject::start(&plane.cluster, side, "bench-1", NO_RESYNC, more);
        writes::create_foo(client, "first").await;
        deployments.until(1, |d| d.metadata.name == "first").await;
        subject.rest().await;
        Self {
            plane,
            side,
            subject,
            deployments,
            foos,
        }
    }
}

/// Returns whether the object is counted.
pub fn is_foo(object: &Object) -> bool {
    object.metadata.name.starts_with("foo-0")
}

/// Returns the seconds until the last completion.
pub fn seconds(begun: Instant, done: &HashMap<String, Instant>) -> f64 {
    let last = done.values().max().expect("something was done");
    (*last - begun).as_secs_f64()
}

/// Returns the milliseconds from the response to each create until the Deployment was seen.
pub fn latencies(
    created: &HashMap<String, Instant>,
    deployed: &HashMap<String, Instant>,
) -> Vec<f64> {
    let latency = |(name, at): (&String, &Instant)| {
        deployed[name].saturating_duration_since(*at).as_secs_f64() * 1000.0
    };
    created.iter().map(latency).collect()
}
