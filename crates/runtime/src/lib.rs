//! A runtime for Kubernetes operators in which only the leader writes.
//!
//! An operator supplies its resource types, their cached forms (the fields to keep in memory), and a [`Reconciler`]. The
//! runtime supplies the rest:
//!
//! - leader election, and a *fence* that rejects writes while this replica does not lead;
//! - informers, the work queue and its workers;
//! - writes with preconditions, and events;
//! - the command line and the configuration;
//! - health, logs, metrics and traces;
//! - the order of start and stop.
//!
//! ```text
//!   flags, environment, file ─▶ config ─▶ main ─▶ telemetry (logs, metrics, traces, health)
//!                                          │
//!                    ┌─────────────────────┴─────────────────────┐
//!                    ▼                                           ▼
//!                election ──────────── term ──────────┐     informers ◀── list, watch ── API server
//!                 Lease                               │          │                           ▲
//!                                                     │          ▼                           │
//!                                                     │     Store (cached forms) ◀─ responses ┤
//!                                                     │          │ changes                   │
//!                                                     ▼          ▼                           │
//!                                                  workers ◀── queue                         │
//!                                                     │                                      │
//!                                                     ▼                                      │
//!                                          your Reconciler ─▶ Writer ─▶ fence ─── writes ────┘
//! ```
//!
//! State flows one way. Every replica keeps its stores current. Only the leader has a queue and workers. A *term* is the period
//! of one leadership. It ends at a deadline, which each renewal of the Lease extends.
//!
//! # What to implement
//!
//! | item | purpose |
//! |---|---|
//! | [`App`], as a `static` | The program's name, API group, defaults and additional settings. |
//! | [`Spec`], for the reconciled resource type | The status, and the references to other objects. The cached form is [`Custom`], with the whole spec. To cache fewer fields, implement [`Primary`] instead. |
//! | [`Fields`], for each other resource type | The fields to cache. The cached form is [`Dependent`], with these fields. For another form, implement [`Cached`] instead. |
//! | a function that takes a [`Builder`] | The [controllers](Builder::controller), and the resource types that each [owns](ControllerBuilder::owns) or only [watches](ControllerBuilder::watches). |
//! | [`Reconciler`] | The [`Plan`] for one object, and the [status](Reconciler::status) after it. |
//!
//! An error type of the reconciler's own implements [`Failure`]: the reason for users, and the retry. [`ApiError`] is enough for
//! most.
//!
//! [`main`] makes a program of these items. The following program is complete. It gives each `Greeting` a `ConfigMap` of the
//! same name that contains the text of the `Greeting`.
//!
//! ```no_run
//! use std::{collections::BTreeMap, process::ExitCode};
//!
//! use k8s_openapi::api::core::v1 as core;
//! use kube::{CustomResource, CustomResourceExt as _};
//! use operator_runtime::{
//!     ApiError, App, Builder, Custom, Dependent, Fields, Kind, Plan, Reconciler, References,
//!     Snapshot, Spec, Status, View, Writer,
//! };
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! // 1. The API type, from which the CRD is generated.
//!
//! /// The spec of a Greeting.
//! #[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "Greeting", plural = "greetings")]
//! #[kube(namespaced, status = "Status")]
//! struct GreetingSpec {
//!     /// The text of the ConfigMap.
//!     text: String,
//! }
//!
//! // 2. The cached forms. The decoder skips all other fields.
//!
//! type CachedGreeting = Custom<GreetingSpec>;
//!
//! impl Spec for GreetingSpec {
//!     const KIND: Kind = Kind::custom("example.com", "v1", "Greeting", "greetings");
//!     type Status = Status;
//!
//!     // The ConfigMap of the same name. Each change of it enqueues the Greeting, even if the Greeting does not control it.
//!     fn references(&self, to: &mut References<'_>) {
//!         to.sibling::<ConfigMap>(to.key().name());
//!     }
//! }
//!
//! #[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
//! struct Data {
//!     data: BTreeMap<String, String>,
//! }
//!
//! impl Fields for Data {
//!     const KIND: Kind = Kind::of::<core::ConfigMap>();
//! }
//!
//! type ConfigMap = Dependent<Data>;
//!
//! // 3. The reconciler. The runtime carries out the plan, and reports the condition Ready.
//!
//! struct Greeter {
//!     maps: Writer<ConfigMap>,
//! }
//!
//! impl Reconciler for Greeter {
//!     type Primary = CachedGreeting;
//!     type Error = ApiError;
//!
//!     fn plan(
//!         &self,
//!         cx: &View<'_, CachedGreeting>,
//!         seen: &Snapshot<CachedGreeting>,
//!     ) -> Result<Plan<CachedGreeting>, ApiError> {
//!         let mut plan = Plan::new();
//!         if seen.view.deleting {
//!             return Ok(plan); // The garbage collector deletes the ConfigMap.
//!         }
//!         let data = BTreeMap::from([("text".to_owned(), seen.view.spec()?.text.clone())]);
//!         plan.apply(&self.maps, cx.key(), &Data { data });
//!         Ok(plan)
//!     }
//! }
//!
//! // 4. The program.
//!
//! static APP: App = App {
//!     about: "Each Greeting gets a ConfigMap",
//!     crates: &["greeter"],
//!     ..App::new("greeter", "0.1.0", "example.com")
//! };
//!
//! /// This program has no settings of its own.
//! #[derive(Deserialize)]
//! struct NoSettings {}
//!
//! fn build(program: &mut Builder, _: NoSettings) {
//!     program.controller("greeting", |builder| Greeter {
//!         maps: builder.owns(),
//!     });
//! }
//!
//! fn main() -> ExitCode {
//!     operator_runtime::main(&APP, || vec![Greeting::crd()], build)
//! }
//! ```
//!
//! Unit tests need neither a cluster nor an election. The `Harness` of the feature `testing` returns the requests of a plan,
//! or reconciles one object. The test supplies the client and the contents of the stores.
//!
//! # Guarantees
//!
//! | guarantee | mechanism |
//! |---|---|
//! | Only the leader writes. | The client of each [`Writer`] contains the [fence](election::FenceLayer). [`Context`] has no client. |
//! | Two replicas never lead at the same time. | One Lease with optimistic concurrency, and a term that ends before the Lease: [`election`]. |
//! | A write never overwrites a version that was not read. | [`Plan::apply`], [`Writer::delete`] and [`Writer::update_status`] send the UID and resourceVersion of their [`Snapshot`]. |
//! | A reconcile sees its own last write. | The response is in the [`Store`] before the write returns. |
//! | At most one worker reconciles an object at a time, and no change is lost. | The work queue, with the semantics of client-go. |
//! | Errors and panics are retried with backoff. | [`Failure::retry`] chooses the retry. The configuration sets the backoff. |
//! | Feedback loops are rate-limited. | The work queue: changes start at most 20 reconciles of an object in a burst, then one per second. |
//! | A panic affects one object. | [`Reconciler`] has the details. |
//! | A missed change is noticed. | A relist compares all objects. A resync calls [`Reconciler::is_up_to_date`]. |
//! | A patch without effect is not repeated. | [`Writer`] remembers it until the object or the patch changes. |
//! | Disputes with other clients are rate-limited. | [`Writer`] delays its corrections: [`ApiError::Contested`]. |
//! | A user can pause an object, and request a reconcile. | [`Reconciler`], by annotations. |
//! | A shutdown loses no work. | [`run`]: no new work, running work drained, fence closed, Lease released. |
//! | A failed task ends the process, and a stalled task fails liveness. | [`run`] |
//!
//! `docs/design.md` argues the first two guarantees, with their assumptions and limits.
//!
//! Details and exceptions:
//!
//! - The fence checks the term three times. The checks are at the start of a write, when a connection takes it, and right
//!   before its bytes go to the kernel. Each write also has a time limit for the API server (`timeout=`).
//! - Events, access reviews and token reviews pass the fence without a term.
//! - The clock of the term continues while the machine is suspended.
//! - [`Writer::update_status`] sends the resourceVersion of the store if the cached form is unchanged since the snapshot. It
//!   replaces the whole status, including fields that the Rust type does not declare.
//! - [`Writer::create`] has no precondition: it fails if the object exists.
//! - The store shows a deletion only after the watch delivers it. During a relist, it shows the result of a write only when the
//!   list or the watch delivers it.
//! - A resync skips an object that was up to date before, unless it or an object that it refers to has changed since.
//! - State that no watch reports needs [`Action::After`], or a [live read](View::live) that the plan repeats.
//! - A patch or status without effect is sent again after a relist, because the schema may have changed.
//!
//! There is **no** protection against a desired state that differs each time: such a reconciler writes each time. Derive the
//! desired state from the stores.
//!
//! # Costs
//!
//! - Memory: the result of [`Cached::decode`] and the key, for each object of each watched resource type. Every replica needs
//!   it, leader or not. [`Builder::select`] limits the objects, [`Exists`] keeps no field of them, and
//!   [`Select::referenced_only`] keeps about 0.1 KiB of each object that is not referenced.
//! - Requests: the writes, and a renewal of the Lease every `retry_period`. Watches: one for each watched resource type and
//!   configured namespace, or for all namespaces, and one for the CRD of each
//!   [optional](ControllerBuilder::if_installed) type. A standby also watches the Lease. Each is reopened after 290 s. While an
//!   optional type is missing, its list is tried every 5 minutes.
//! - Idle requests: the renewals and watches. [`http.metrics_auth`](config::Http::metrics_auth) adds reviews of the tokens of
//!   scrapers. A resync without work sends none.
//! - CPU: one thread. While a reconcile waits for a response, others run. While it computes, all others wait.
//!   [`Store::for_each`] locks its store.
//! - Failover: `lease_duration` if the leader dies. If the leader shuts down, the time that its running work takes.
//!
//! # Use with another controller
//!
//! An operator with kube's own `Controller` can use the election and the fence alone, with `default-features = false`.
//! [`candidate()`] publishes the term, and returns a client that writes only during a term. [`FenceLayer::wrap`] fences a client
//! of your own. `examples/kube_controller.rs` is a complete program.
//!
//! # Features
//!
//! | feature | contents |
//! |---|---|
//! | `operator`, on by default | All of the runtime: controllers, command line, configuration file, log, HTTP server and export. |
//! | `testing` | The `Harness` for unit tests of a reconciler. |
//! | `aws-lc-rs` | TLS by AWS-LC in place of ring. Also accepts P-521, and P-384 with SHA-512. Needs a C compiler. |
//!
//! [`FenceLayer::wrap`]: election::FenceLayer::wrap

#![cfg_attr(feature = "operator", warn(unreachable_pub))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests are outside"))]

mod api;
#[cfg(feature = "operator")]
mod cache;
pub mod client;
#[cfg(feature = "operator")]
mod cmd;
pub mod config;
#[cfg(feature = "operator")]
mod controller;
pub mod election;
#[cfg(feature = "operator")]
mod reconcile;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// For the tests, the simulation and the generators of the repository. Not part of the interface: may change at any time.
#[cfg(feature = "operator")]
#[doc(hidden)]
pub mod internals {
    pub use crate::{
        client::{
            cluster::lease_transport,
            fence::{eligibility::Eligibility, recheck_before_sending},
            transport::{READ_TIMEOUT, Transport, complete_status},
        },
        cmd::access::Declared,
        config::{
            load::{args, default_of, load, variables},
            sources::keys,
            table::OTLP,
        },
        controller::Controllers,
        election::{
            candidate::YIELD_DELAY,
            identity::{ElectionTarget, Identity},
            lease_guard::{LeaseGuardLayer, SeenLease},
            run::{Election, run},
        },
        telemetry::{
            health::Health,
            heartbeat::Heartbeat,
            server::{
                Server,
                auth::{Page, Refusal},
            },
            start::Telemetry,
        },
    };

    /// Decisions of the election, for the model.
    pub mod state_machine {
        pub use crate::election::state_machine::*;
    }
}

/// CRDs with several versions.
#[cfg(feature = "operator")]
pub mod crd {
    pub use crate::api::{
        conversion::{Convert, Definition, Version, Versioned, converted},
        crd::versions,
    };
}

#[cfg(feature = "operator")]
pub use {
    api::{
        applied::Applied,
        difference::Comparison,
        exists::Exists,
        failure::{Failure, Retry, brief},
        key::Key,
        kind::Kind,
        names as dns,
        object::{Cached, Field, Finalizable, Meta, Metadata, Object, Primary},
        plain::{Custom, Dependent, Fields, Spec},
        reference::{ObjectRef, Owner, OwnerReference, References},
        reported::{Reported, Status, condition},
        select::Select,
    },
    cache::{
        index::Index,
        store::{Snapshot, Store},
    },
    cmd::{
        cli::{command, main},
        run::{Error, run},
    },
    config::settings::Config,
    controller::{
        TaskExited,
        builder::{Builder, ControllerBuilder, if_installed::IfInstalled},
        trigger::Trigger,
    },
    reconcile::{
        context::{Context, Step, View},
        error::ApiError,
        live::Live,
        plan::{Apply, Carried, Delete, Plan, StepError},
        reconciler::{Action, Outcome, Reconciler},
        writer::{Writer, finalizer::Finalizer, owner_reference},
    },
    telemetry::events::event::Event,
};
pub use {
    config::{app::App, environment::Host},
    election::standalone::{Candidate, candidate},
};
