//! What any leader-elected Kubernetes operator needs, and nothing of what one is about.
//!
//! Who may act ([`election`]), what is to be done next ([`queue`]), what can be seen ([`telemetry`]), and what may be set
//! ([`config`]). The application says who it is ([`App`]), and brings its kinds.

mod app;
pub mod client;
pub mod config;
pub mod dns;
pub mod election;
pub mod ineffective;
mod key;
pub mod queue;
pub mod telemetry;
pub mod version;

pub use app::App;
pub use config::Config;
pub use key::Key;
