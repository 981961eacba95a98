//! What can be seen from outside: the log on standard error, and the health endpoints.

pub mod http;

use std::io::IsTerminal as _;

use tracing::{error, level_filters::LevelFilter};
use tracing_subscriber::{EnvFilter, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::config::{Log, LogFormat};

/// What the libraries log for themselves is said by us once, with its cause, where it matters.
const OURS_ALONE: [&str; 2] = ["kube_client=off", "kube_runtime=off"];

/// Starts logging. What the configuration says of a library's target goes over its being silent.
///
/// Does nothing where the process logs already.
pub fn init(log: &Log) {
    let terminal = std::io::stderr().is_terminal();
    let text = match log.format {
        LogFormat::Text => true,
        LogFormat::Json => false,
        LogFormat::Auto => terminal,
    };
    let directives = OURS_ALONE.join(",") + "," + &log.level;
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .parse_lossy(directives);
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
