//! An API server in memory, as correct as `tests/support/differential.rs` can verify. It has objects with their whole history;
//! writes with preconditions, defaults and validation; lists, pages and watches.
//!
//! It is a plain state machine. It uses no time, randomness or threads of the host, so the same calls get the same responses.
//! It does not guess: [`Unknown`] ends the run.

mod access;
mod contents;
mod convert;
mod definition;
mod delete;
mod deployment;
mod duration;
mod event;
mod fields;
mod job;
mod json_patch;
mod kind;
mod list;
mod metadata;
mod names;
mod others;
mod patch;
mod pods;
mod policy;
mod quantity;
mod release;
mod request;
mod scale;
mod schema;
mod selector;
mod server;
mod service;
mod status;
mod store;
mod strategy;
mod time;
mod typed;
mod watch;
mod write;

pub use access::{Rule, Verb};
pub use kind::{CustomKind, Kind};
pub use others::Others;
pub use policy::Fencing;
pub use release::Release;
pub use request::{Call, METADATA, METADATA_LIST, Method, Unknown, User, describe};
pub(crate) use schema::store_numbers;
pub use server::{Answer, Lag, Now, Server};
pub use store::{Backup, Key, RESTORED, Revision, Store};
pub use watch::{Line, Watch};
