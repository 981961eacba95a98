//! Deterministic simulation of any operator on `operator-runtime`: whole replicas, as they ship, against API servers in memory.
//!
//! A *seed* determines everything: the settings, the users, and the faults of processes, clocks, networks, API servers and permissions.
//! The same seed gives the same trace, byte for byte. After a *storm* of faults, all faults end. Then every object must reach its
//! desired state, and the operator must do nothing more.
//!
//! An author writes a [`Subject`] and a `main` of one line. The README of this crate has a whole example, and the list of the rules that
//! need no line of the author's.
//!
//! ```no_run
//! # use operator_simulation::{Operator, Subject, Verdict, View};
//! # use operator_runtime::{App, Builder};
//! # use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
//! # static APP: App = App::new("greeter", "0.1.0", "example.com");
//! # fn build(_: &mut Builder) {}
//! # fn crd() -> CustomResourceDefinition { CustomResourceDefinition::default() }
//! # struct Greetings;
//! # impl Subject for Greetings {
//! #     type Object = k8s_openapi::api::core::v1::ConfigMap;
//! #     fn settled(&self, _: &Self::Object, _: &View<'_>) -> Verdict { Ok(()) }
//! # }
//! fn main() -> std::process::ExitCode {
//!     let operator = Operator::new(&APP, |program, _| build(program));
//!     operator_simulation::main(operator.subject(crd(), Greetings))
//! }
//! ```
//!
//! # Determinism of the author's code
//!
//! - The time of day, random numbers and variables come from the runtime: `operator_runtime::View::now`, `Host`.
//! - No threads, no blocking tasks, no sockets, no files. Systems outside the cluster are behind a trait, which [`Outside`] implements.
//! - The order of a `HashMap` reaches no request, no log line and no decision. A `select!` is `biased`.
//! - No state is in statics: all replicas live in one process.
//!
//! `--twice` runs each seed in a second process, with other hash keys, and compares the traces.
//!
//! # Other modules
//!
//! An operator with users and judges of its own is a [`Program`](program::Program), which [`main`] runs as well. [`invariants`] checks
//! the audit logs of real API servers by the same rules.
#![allow(
    missing_docs,
    reason = "most modules are for the workspace; `warn` marks those of authors"
)]
#![allow(
    clippy::must_use_candidate,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "most of it is for the workspace"
)]
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a program whose user reads what it prints, and which fails by panicking"
)]

pub mod actors;
pub mod cases;
pub mod command;
#[warn(missing_docs)]
pub mod draw;
pub mod invariants;
pub mod judge;
pub mod network;
#[warn(missing_docs)]
pub mod outside;
pub mod plan;
pub mod program;
mod record;
pub mod replica;
pub mod request;
pub mod scripts;
pub mod seeds;
pub mod shrink;
#[warn(missing_docs)]
pub mod subject;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod world;

pub use command::main;
pub use draw::Draws;
pub use outside::{Outside, Place, System};
pub use subject::{Operator, Subject, Verdict, View, check};
