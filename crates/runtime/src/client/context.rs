//! Context of a controller's requests.

use kube::Client;

use crate::config::{app::App, environment::Host};

/// Application, environment and client, shared by watches and writers.
pub(crate) struct ClientContext {
    pub app: &'static App,
    pub host: Host,
    /// Client behind the fence: rejects writes after the end of the term.
    pub client: Client,
}
