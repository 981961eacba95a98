//! What any leader-elected Kubernetes operator needs, and nothing of what one is about.
//!
//! Who may act ([`election`]), what is to be done next ([`queue`]), what can be seen ([`telemetry`]), and what may be set
//! ([`config`]). The application says who it is ([`App`]), and brings its kinds.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests are outside"))]

mod builder;
mod cli;
pub mod client;
mod clock;
pub mod config;
mod controller;
mod corrections;
pub mod dns;
pub mod election;
mod error;
mod failure;
#[cfg(test)]
mod fixtures;
mod host;
mod ineffective;
mod instruments;
mod key;
mod log_once;
mod manager;
mod object;
pub mod queue;
mod reconciler;
mod recorder;
mod resync;
mod scopes;
mod store;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
pub mod transport;
mod version;
mod watch;
mod writer;

pub use builder::Builder;
pub use cli::main;
#[cfg(test)]
use config::app;
pub use config::{App, Config};
pub use controller::{Controller, Died};
pub use error::{ApiError, Failure, Retry};
pub use host::Host;
pub use key::Key;
pub use manager::{Error, run};
pub use object::{Cached, Field, Kind, Meta, Metadata, Object, Owner, OwnerReference, Primary};
pub use reconciler::{Action, Context, Reconciler};
pub use recorder::Event;
pub use store::{Snapshot, Store};
pub use writer::{Patched, Writer, wanted};
