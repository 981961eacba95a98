//! The command `convert`: the conversion webhook of the program's CRDs.
//!
//! It has no client, and needs neither a kubeconfig nor permissions. It is a process of its own, because the controller's first
//! list would wait for it: the API server answers that list only after the conversion of all objects.
//!
//! The API server uses HTTP/1.1, keeps idle connections for 90 s, and repeats no request (`webhook/client.go` and `net/http`). A
//! request on a connection that closes at the same time fails. So this server closes no connection that the API server may be
//! about to use, except at the end of the stop.

mod review;
mod sending;
mod server;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use self::{
    review::Reviews,
    server::{LIMITS, Phase, Requests},
};
use crate::{
    api::conversion::Definition,
    config::{app::App, build_info, environment::Host, settings::Config},
    controller::TaskExited,
    telemetry::{
        self,
        health::Health,
        log_once::OutageLog,
        metrics::Metrics,
        server::{
            Server, accept_secure, listen_on,
            tls::{PERIOD, Tls},
        },
    },
};

/// Time between a stop request and the end of the idle connections. Until then, new connections are accepted, because the nodes
/// learn of the end of this endpoint only gradually. Each used connection ends after its response.
const DRAIN: Duration = Duration::from_secs(10);

/// Interval of the attempts to load the first certificate.
const RETRY: Duration = Duration::from_secs(1);

/// Flags of the command.
pub(super) struct Options {
    pub listen: SocketAddr,
    /// Folder with `tls.crt` and `tls.key`.
    pub certificates: PathBuf,
}

/// An error that ends the command.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(
        "no CustomResourceDefinition of this program has a conversion webhook: convert is for programs that call crd::converted"
    )]
    NoConversion,
    #[error(transparent)]
    Listen(#[from] telemetry::server::Error),
    #[error(transparent)]
    TaskExited(#[from] TaskExited),
}

/// Serves conversions until `shutdown` resolves. Running reviews may then finish, for at most `shutdown_timeout` in all.
///
/// # Errors
/// See [`Error`]. A missing certificate is not an error: the process is not ready, and tries again.
pub(super) async fn run(
    host: &Host,
    definitions: Vec<Definition>,
    options: Options,
    config: &Config,
    metrics: Metrics,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    if !definitions.iter().any(Definition::is_converted) {
        return Err(Error::NoConversion);
    }
    let app = metrics.app();
    // A scraper cannot be authorized, because there is no client.
    let is_open = !config.http.metrics_auth;
    let http = crate::config::Http {
        metrics_auth: false,
        ..config.http.clone()
    };
    let health_server = Server::bind(app, &http).await?;
    let listener = listen_on("--listen", options.listen)?;
    let commit = build_info::commit().unwrap_or("unknown");
    info!(version = app.version, commit, "starting");
    if !is_open {
        warn!(
            "metrics are not served: http.metrics_auth is set, and convert has no client to authorize scrapers with"
        );
    }
    let mut health = Health::new(host);
    let failure = Arc::new(Mutex::new(Some("not loaded yet".to_owned())));
    let shown = Arc::clone(&failure);
    health.ready("certificate", move || shown.lock().clone());
    let shutdown = health.until(shutdown);
    let requests = Arc::new(Requests::new(Reviews::new(definitions, &metrics)));
    let phase = Arc::new(watch::Sender::new(Phase::Serving));
    let serving = async {
        let tls = loaded(app, options.certificates, &failure).await;
        if let Ok(webhook_addr) = listener.local_addr() {
            info!(%webhook_addr, "serving conversions");
        }
        let phase = Arc::clone(&phase);
        let serve =
            move |stream, _| server::serve(stream, Arc::clone(&requests), phase.subscribe());
        accept_secure(listener, tls, LIMITS, serve).await;
    };
    let stop = async {
        shutdown.await;
        phase.send_replace(Phase::Draining);
        let drain = DRAIN.min(config.shutdown_timeout / 2);
        sleep(drain).await;
        phase.send_replace(Phase::Closing);
        if timeout(
            config.shutdown_timeout.saturating_sub(drain),
            phase.closed(),
        )
        .await
        .is_err()
        {
            warn!("stopped before the end of all reviews");
        }
    };
    tokio::select! {
        () = serving => Err(TaskExited("the webhook".into()).into()),
        () = health_server.serve_without_client(health, is_open.then_some(metrics)) => {
            Err(TaskExited("the HTTP server".into()).into())
        }
        () = stop => {
            info!("stopped");
            Ok(())
        }
    }
}

/// Loads the first certificate, and tries until that succeeds. `failure` is the reason why it has not.
async fn loaded(app: &App, folder: PathBuf, failure: &Mutex<Option<String>>) -> Tls {
    let mut outage = OutageLog::default();
    loop {
        match Tls::new(app, Some(folder.clone()), PERIOD).await {
            Ok(tls) => {
                *failure.lock() = None;
                return tls;
            }
            Err(error) => {
                let error = error.to_string();
                if let Some(lasting) = outage.is_due(&error) {
                    warn!("cannot load the certificate, trying again: {error}{lasting}");
                }
                *failure.lock() = Some(error);
            }
        }
        sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests;
