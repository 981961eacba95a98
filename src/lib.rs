//! A leader-elected Kubernetes operator: each `Foo` gets a Deployment, kept right, with its status told.
//!
//! ```text
//!  config ─▶ telemetry ─▶ clients ─▶ caches (Foo, Deployment: warm in every replica)
//!                           │             │ changes
//!               lease client│             ▼
//!                           ▼           queue ─▶ workers ─▶ reconcile ─▶ fenced client ─▶ API server
//!                        election ──term──▶ fence ─────────────────────────┘
//! ```
//!
//! State flows one way. The term of leadership is one `watch` channel; nobody shares a lock. Three rooms,
//! one question each: who may act ([`election`]), what is to be done ([`controller`]), what can be seen
//! ([`telemetry`]).

pub mod api;
pub mod controller;
#[cfg(test)]
mod loops;
#[cfg(test)]
mod settings;

use std::convert::Infallible;

use futures::FutureExt as _;
use operator_runtime::{
    App, Config, client,
    config::{Key, Rule, WORK},
    election::{self, Clock, Election, Identity},
    telemetry::{
        self, Metrics,
        health::Health,
        http::Server,
        metrics::table::{Metric, SECTIONS},
    },
    version,
};
use serde::Deserialize;
use tokio::sync::{oneshot, watch};
use tracing::info;

use controller::{Controller, Died};

/// This program.
pub static APP: App = App {
    name: env!("CARGO_PKG_NAME"),
    version: env!("CARGO_PKG_VERSION"),
    group: api::GROUP,
    defaults: include_str!("../config/foo-controller.toml"),
    keys: &[Key {
        name: "image",
        flag: "image",
        heading: WORK,
        placeholder: "IMAGE",
        rule: Rule::Text(
            is_image,
            "an image name without blanks, at most 1024 characters",
        ),
        help: "What the one container of every Deployment runs",
    }],
    crates: &["foo_controller"],
};

/// All metrics, by what they are about.
pub fn metrics() -> impl Iterator<Item = (&'static str, &'static [Metric])> {
    let foos: (&str, &[Metric]) = ("Foos", &[controller::FOOS]);
    SECTIONS.iter().copied().chain([foos])
}

/// What Foo adds to the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct FooConfig {
    /// The image of every Deployment's container (row R1), not empty.
    pub image: String,
}

fn is_image(text: &str) -> bool {
    (1..=1024).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Why [`run`] came to an end that nobody asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No way to the cluster is configured, or it cannot be read.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// Health or metrics cannot be served as they are asked for.
    #[error(transparent)]
    Http(#[from] telemetry::http::Error),
    /// No election can be held: no identity, or no client.
    #[error(transparent)]
    Election(#[from] election::Error),
    /// A part of the controller ended that never should.
    #[error(transparent)]
    Died(#[from] Died),
}

impl Error {
    /// Whether the operator's settings are at fault rather than the cluster or the program.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        !matches!(self, Self::Died(_))
    }
}

/// Runs one replica until `shutdown` resolves, and then ends in the order that lets no two leaders overlap
/// (row P2): no new work, running work drained, fence shut, Lease released.
///
/// # Errors
/// See [`Error`]. An API server that cannot be reached is none: that is waited for.
pub async fn run(
    mut config: Config,
    foo: FooConfig,
    metrics: Metrics,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let kube = client::config(&APP, &config).await?;
    let server = Server::bind(&APP, &config.http).await?;
    let identity = Identity::from_env()?;
    let mut _claim = None;
    if config.leader_election.enabled {
        let named = config.leader_election.lease_namespace.take();
        let namespace = named
            .or_else(|| election::pod_namespace(client::is_pods_own(&config)))
            .ok_or(election::Error::Namespace)?;
        let lease = &config.leader_election.lease_name;
        _claim = Some(identity.claim(&namespace, lease)?);
        config.leader_election.lease_namespace = Some(namespace);
    }
    let commit = version::commit().unwrap_or("unknown");
    info!(server = %kube.cluster_url, version = APP.version, commit, %identity, "starting");
    let (publish, term) = watch::channel(None);
    let client = client::fenced(&kube, &config.leader_election, term.clone(), &metrics)?;
    let mut health = Health::new();
    let name = identity.to_string();
    let mut controller = Controller::new(&client, &config, &foo.image, name, &metrics, &mut health);
    let pulse = health.pulse("leader-election");
    let shutdown = health.until(shutdown);
    let serving = server.serve(client, health, metrics.clone());

    let (drained, stop) = oneshot::channel::<Infallible>();
    let election = Election {
        server: kube.cluster_url.clone(),
        transport: election::transport(kube, &config.leader_election)?,
        clock: Clock::boottime(),
        settings: config.leader_election,
        identity,
        metrics,
        ability: controller.ability(),
    };
    let mut election = tokio::spawn(election::run(election, publish, pulse, stop.map(drop)));
    let ended = tokio::select! {
        ended = controller.run(term, shutdown) => ended.map_err(Error::Died),
        () = serving => Err(Died("the HTTP server").into()),
        ended = &mut election => {
            return Err(match ended {
                Ok(Err(error)) => error.into(),
                Ok(Ok(())) | Err(_) => Died("the election").into(),
            });
        }
    };
    drop(drained);
    let (released, ()) = tokio::join!(election, controller.finish());
    ended?;
    released.map_err(|_| Died("the election"))??;
    info!("stopped");
    Ok(())
}
