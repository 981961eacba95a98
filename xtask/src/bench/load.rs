//! Load generator. It must not be the bottleneck: it has 16 connections, prepares bodies in advance and decodes as little of
//! the responses as possible.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures::future::join_all;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioExecutor};
use kube::{
    Client, Config,
    client::ConfigExt as _,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{sync::Mutex, time::interval};
use tower::{BoxError, ServiceBuilder};

use operator_testkit::cluster::Cluster;

/// Concurrent requests, each on its own connection.
const CONNECTIONS: usize = 16;

/// Connections of the user `bench-load`.
pub struct Load(Vec<Client>);

impl Load {
    pub async fn new(cluster: &Cluster) -> Self {
        Self(clients(cluster, CONNECTIONS).await)
    }

    /// Returns a client for single requests.
    pub fn client(&self) -> &Client {
        &self.0[0]
    }

    /// Runs `act` for each name as fast as the connections allow. Returns the completion times.
    pub async fn each(
        &self,
        names: &[String],
        act: impl AsyncFn(&Client, &str),
    ) -> HashMap<String, Instant> {
        let left = Mutex::new(names.iter());
        self.drain(async || left.lock().await.next(), act).await
    }

    /// Like [`Self::each`], but starts the calls at a steady rate.
    pub async fn at_rate(
        &self,
        a_second: u32,
        names: &[String],
        act: impl AsyncFn(&Client, &str),
    ) -> HashMap<String, Instant> {
        let left = Mutex::new((interval(Duration::from_secs(1) / a_second), names.iter()));
        let next = async || {
            let (tick, names) = &mut *left.lock().await;
            tick.tick().await;
            names.next()
        };
        self.drain(next, act).await
    }

    async fn drain<'a>(
        &self,
        next: impl AsyncFn() -> Option<&'a String>,
        act: impl AsyncFn(&Client, &str),
    ) -> HashMap<String, Instant> {
        let connection = async |client| {
            let mut done = Vec::new();
            while let Some(name) = next().await {
                act(client, name).await;
                done.push((name.clone(), Instant::now()));
            }
            done
        };
        let done = join_all(self.0.iter().map(connection)).await;
        done.into_iter().flatten().collect()
    }
}

/// Opens `count` connections of the user `bench-load`.
pub async fn clients(cluster: &Cluster, count: usize) -> Vec<Client> {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig_of("bench-load")).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    (0..count).map(|_| connect(&config).unwrap()).collect()
}

/// Connects without Nagle's algorithm, which delays many responses of kube's default client by 40 ms.
fn connect(config: &Config) -> kube::Result<Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .service(
            hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector),
        );
    Ok(Client::new(service, "default"))
}

/// `PREFIX-000000`, `PREFIX-000001`, …
pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n:06}")).collect()
}
