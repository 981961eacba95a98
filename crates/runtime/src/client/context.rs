//! The parts that all requests of a controller share.

use kube::Client;

use crate::config::{app::App, environment::Host};

/// The parts that watches and writers share.
pub(crate) struct ClientContext {
    pub app: &'static App,
    pub host: Host,
    /// Refuses writes past the end of the term.
    pub client: Client,
}
