//! A runtime for Kubernetes operators of which one replica at a time may write.
//!
//! An operator brings its *kinds*: what is watched, what is kept of each object, and a [`Reconciler`] that brings one object
//! to what it should be. Everything else is here: leader election and the fence, informers, the work queue and its workers,
//! writes with their preconditions, events, the command line and the configuration, health, logs, metrics and traces, and
//! the order in which all that starts and stops.
//!
//! ```text
//!   flags, environment, file ─▶ config ─▶ main ─▶ telemetry (logs, metrics, traces, health)
//!                                          │
//!                    ┌─────────────────────┴─────────────────────┐
//!                    ▼                                           ▼
//!                election ──────────── term ──────────┐     informers ◀── list, watch ── API server
//!                 Lease                               │          │                           ▲
//!                                                     │          ▼                           │
//!                                                     │     Store (cached forms) ◀── answers ─┤
//!                                                     │          │ changes                   │
//!                                                     ▼          ▼                           │
//!                                                  workers ◀── queue                         │
//!                                                     │                                      │
//!                                                     ▼                                      │
//!                                          your Reconciler ─▶ Writer ─▶ fence ─── writes ────┘
//! ```
//!
//! State flows one way. Every replica keeps its stores current; only the one that holds the Lease has a queue and workers.
//!
//! # What to implement
//!
//! | | what it says |
//! |---|---|
//! | [`App`], a `static` | what the program is called, its API group, its defaults, the settings that it adds |
//! | [`Cached`], for each kind that is watched | which fields of an object are kept, and what other objects it refers to. [`Custom`] and [`Dependent`] are such forms already, which keep a whole spec, or the fields that are named, and take next to no code: `examples/second_kind.rs` |
//! | [`Primary`], for the kind that is reconciled | where its generation and its status are |
//! | [`Failure`], for an error type | the reason that users see, and when it is tried again |
//! | a function that takes a [`Builder`] | which kinds are [owned](Builder::owns) and which are only [read](Builder::watches) |
//! | [`Reconciler`] | what is to be done about one object |
//!
//! [`main`] makes a program of them. This one is whole: each `Greeting` gets a `ConfigMap` of its name that holds its text.
//!
//! ```no_run
//! use std::{
//!     hash::{Hash as _, Hasher},
//!     process::ExitCode,
//!     sync::Arc,
//! };
//!
//! use k8s_openapi::api::core::v1 as core;
//! use kube::{CustomResource, CustomResourceExt as _};
//! use operator_runtime::{
//!     Action, ApiError, App, Builder, Cached, Context, Event, Failure, Field, Kind, Meta,
//!     Metadata, Owner, Primary, Reconciler, Retry, Snapshot, Writer,
//! };
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use serde_json::{Value, json};
//!
//! // 1. The API: what users write, what the controller reports, and the CRD that comes of both.
//!
//! /// What a Greeting says.
//! #[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
//! #[kube(group = "example.com", version = "v1", kind = "Greeting", plural = "greetings")]
//! #[kube(namespaced, status = "GreetingStatus")]
//! struct GreetingSpec {
//!     /// The text.
//!     text: String,
//! }
//!
//! /// What has become of it.
//! #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
//! #[serde(rename_all = "camelCase", default)]
//! struct GreetingStatus {
//!     /// The generation that this is about.
//!     observed_generation: i64,
//!     /// Why it is not as it should be.
//!     error: Option<String>,
//! }
//!
//! // 2. The cached forms: what the stores keep. All else is skipped while the JSON is read.
//!
//! #[derive(Clone, Debug, PartialEq)]
//! struct CachedGreeting {
//!     name: String,
//!     uid: Box<str>,
//!     generation: i64,
//!     deleting: bool,
//!     /// Or what is wrong with it: it may have been stored before the schema said so.
//!     spec: Result<GreetingSpec, String>,
//!     status: GreetingStatus,
//! }
//!
//! #[derive(Deserialize)]
//! struct GreetingWire {
//!     metadata: Metadata,
//!     #[serde(default)]
//!     spec: Field<GreetingSpec>,
//!     #[serde(default)]
//!     status: Field<GreetingStatus>,
//! }
//!
//! impl Cached for CachedGreeting {
//!     type Wire = GreetingWire;
//!     const KIND: Kind = Kind::custom("example.com", "v1", "Greeting", "greetings");
//!
//!     fn decode(mut wire: GreetingWire) -> (Meta, Self) {
//!         let greeting = Self {
//!             name: wire.metadata.name.clone(),
//!             uid: std::mem::take(&mut wire.metadata.uid),
//!             generation: std::mem::take(&mut wire.metadata.generation).or_default(),
//!             deleting: wire.metadata.deleting,
//!             spec: wire.spec.into_result("spec"),
//!             status: wire.status.or_default(),
//!         };
//!         (wire.metadata.into_meta(), greeting)
//!     }
//!     fn uid(&self) -> &str {
//!         &self.uid
//!     }
//!     // The ConfigMap of its name: whatever happens to that one enqueues the Greeting.
//!     fn references(&self) -> impl Iterator<Item = &str> {
//!         std::iter::once(self.name.as_str())
//!     }
//!     fn content(&self, state: &mut impl Hasher) {
//!         self.generation.hash(state);
//!     }
//! }
//!
//! impl Primary for CachedGreeting {
//!     type Status = GreetingStatus;
//!     fn generation(&self) -> i64 {
//!         self.generation
//!     }
//!     fn is_deleting(&self) -> bool {
//!         self.deleting
//!     }
//!     fn status(&self) -> &GreetingStatus {
//!         &self.status
//!     }
//!     fn is_observed(&self) -> bool {
//!         self.status.observed_generation == self.generation
//!     }
//!     fn says(status: &GreetingStatus, state: &mut impl Hasher) {
//!         (status.observed_generation, &status.error).hash(state);
//!     }
//! }
//!
//! #[derive(Clone, Debug, PartialEq)]
//! struct ConfigMap {
//!     uid: Box<str>,
//!     owner: Option<Owner>,
//!     text: Option<String>,
//! }
//!
//! #[derive(Deserialize)]
//! struct ConfigMapWire {
//!     metadata: Metadata,
//!     #[serde(default)]
//!     data: Field<Data>,
//! }
//!
//! #[derive(Default, Deserialize)]
//! struct Data {
//!     text: Option<String>,
//! }
//!
//! impl Cached for ConfigMap {
//!     type Wire = ConfigMapWire;
//!     const KIND: Kind = Kind::of::<core::ConfigMap>();
//!
//!     fn decode(mut wire: ConfigMapWire) -> (Meta, Self) {
//!         let map = Self {
//!             uid: std::mem::take(&mut wire.metadata.uid),
//!             owner: wire.metadata.take_owner(&CachedGreeting::KIND),
//!             text: wire.data.or_default().text,
//!         };
//!         (wire.metadata.into_meta(), map)
//!     }
//!     fn uid(&self) -> &str {
//!         &self.uid
//!     }
//!     fn references(&self) -> impl Iterator<Item = &str> {
//!         self.owner.iter().map(|owner| &*owner.name)
//!     }
//!     fn owner(&self) -> Option<&Owner> {
//!         self.owner.as_ref()
//!     }
//!     fn content(&self, state: &mut impl Hasher) {
//!         self.text.hash(state);
//!     }
//! }
//!
//! // 3. What can go wrong.
//!
//! #[derive(Debug, thiserror::Error)]
//! enum Error {
//!     #[error("spec: {0}")]
//!     Invalid(String),
//!     /// That the `ConfigMap` of its name is somebody else's, too.
//!     #[error(transparent)]
//!     Api(#[from] ApiError),
//! }
//!
//! impl Failure for Error {
//!     fn name(&self) -> &'static str {
//!         match self {
//!             Self::Invalid(_) => "Invalid",
//!             Self::Api(error) => error.name(),
//!         }
//!     }
//!     fn reason(&self) -> Option<&'static str> {
//!         match self {
//!             Self::Invalid(_) => Some("Invalid"),
//!             Self::Api(error) => error.reason(),
//!         }
//!     }
//!     fn retry(&self) -> Retry {
//!         match self {
//!             // A change of the Greeting enqueues it; until then, its status says why.
//!             Self::Invalid(_) => Retry::OnChange,
//!             Self::Api(error) => error.retry(),
//!         }
//!     }
//! }
//!
//! // 4. The reconciler. A resync runs it, too, up to the first thing that it would do.
//!
//! struct Greeter {
//!     greetings: Arc<Writer<CachedGreeting>>,
//!     maps: Writer<ConfigMap>,
//! }
//!
//! /// The patch that puts a `ConfigMap` right.
//! fn plan(text: &str, map: &ConfigMap) -> Option<Value> {
//!     (map.text.as_deref() != Some(text)).then(|| json!({ "data": { "text": text } }))
//! }
//!
//! impl Greeter {
//!     async fn greet(
//!         &self,
//!         cx: &Context<'_, CachedGreeting>,
//!         seen: &CachedGreeting,
//!     ) -> Result<(), Error> {
//!         let spec = seen.spec.as_ref();
//!         let text = &spec.map_err(|wrong| Error::Invalid(wrong.clone()))?.text;
//!         let manifest = json!({ "data": { "text": text } });
//!         let plan = |map: &ConfigMap| plan(text, map);
//!         self.maps.ensure(cx, cx.key(), manifest, plan).await?;
//!         Ok(())
//!     }
//! }
//!
//! impl Reconciler for Greeter {
//!     type Primary = CachedGreeting;
//!     type Error = Error;
//!
//!     async fn reconcile(
//!         &self,
//!         cx: &Context<'_, CachedGreeting>,
//!         seen: &Snapshot<CachedGreeting>,
//!     ) -> Result<Action, Error> {
//!         if seen.view.deleting {
//!             return Ok(Action::Done); // The garbage collector deletes what it owns.
//!         }
//!         let greeted = self.greet(cx, &seen.view).await;
//!         let error = greeted.as_ref().err();
//!         // What passes by itself has no reason, and is not reported.
//!         if error.is_none_or(|error| error.reason().is_some()) {
//!             let status = GreetingStatus {
//!                 observed_generation: seen.view.generation,
//!                 error: error.map(ToString::to_string),
//!             };
//!             let synced = Event::normal("Synced", "Greeting synced successfully");
//!             let event = error.map_or(synced, Event::failed);
//!             self.greetings.report(cx, seen, &status, event).await?;
//!         }
//!         greeted.map(|()| Action::Done)
//!     }
//! }
//!
//! // 5. The program.
//!
//! static APP: App = App {
//!     about: "Each Greeting gets a ConfigMap",
//!     crates: &["greeter"],
//!     ..App::new("greeter", "0.1.0", "example.com", "greeting")
//! };
//!
//! /// It adds nothing to the configuration.
//! #[derive(Deserialize)]
//! struct NoSettings {}
//!
//! fn build(builder: &mut Builder<CachedGreeting>, _: NoSettings) -> Greeter {
//!     Greeter {
//!         greetings: builder.primary(),
//!         maps: builder.owns(),
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     operator_runtime::main(&APP, || vec![Greeting::crd()], build)
//! }
//! ```
//!
//! Its tests need neither a cluster nor an election: `testing::Harness`, with the feature `testing`, reconciles one object
//! against a client of the test's, with what the test puts into the stores.
//!
//! # What is guaranteed, and by what
//!
//! | | by what |
//! |---|---|
//! | No replica writes that does not lead. | [`Writer`] is the only way to write, and its client has the [fence](election::fence) in it: a write (but for events and reviews) needs a live term when it begins, when its bytes are handed to the connection, and when that hands them to the kernel, and names to the API server when it has to be over. [`Context`] has no client. |
//! | Two replicas do not lead at once. | One Lease, written only as it was read; a term with a deadline before the Lease's, on a clock that a suspended machine does not stop; see [`election`]. |
//! | Nothing is overwritten that was not read. | [`Writer::patch`], [`Writer::delete`] and [`Writer::update_status`] carry the UID and the resourceVersion of the [`Snapshot`] that they are given, or of a newer version whose cached form is the same; [`Writer::create`] is a plain create. Not covered are fields of the status that the kind's type does not name: [`Writer::update_status`] replaces it whole. |
//! | A reconcile sees its own last write. | The answer to a write is in the [`Store`] before the write returns: but for that to a deletion, and while the kind is being listed anew, when the list shows it. |
//! | One worker at a time has an object, and what happens meanwhile is not lost. | the work queue, whose promises are client-go's |
//! | What fails is tried again, ever more slowly; also after a panic. | [`Failure::retry`] says how; the backoff of the configuration sets the pace |
//! | What changes whenever it is worked on makes no loop: 20 times at once, and then once in a second. | the work queue |
//! | What panics in whatever method of a kind is a matter of one object. | [`Reconciler`] says what becomes of that |
//! | A change that is missed is noticed. | An informer that lists again compares; a resync asks [`Reconciler::is_up_to_date`] of every object, but where nothing that it refers to has changed since it was asked last. What no watch tells of takes [`Action::After`]. |
//! | What the API server does not take over is not asked for again and again. | [`Writer`] remembers what an answer did not change, until somebody changes the object. |
//! | Whoever undoes a write again and again, of whatever verb, is answered ever more slowly. | [`Writer`]: [`ApiError::Contested`] |
//! | A stop loses nothing: no new work, running work drained, fence shut, Lease released. | [`run`] |
//! | A part that dies ends the process, and one that is stuck fails liveness. | [`run`], [`telemetry::health`] |
//!
//! What the first two rest on beyond the process, and what they do not cover, is the argument of `docs/design.md`.
//!
//! What is **not** taken care of: a reconciler that asks for something else each time writes each time. What it wants must
//! follow from what is in the stores.
//!
//! # What it costs
//!
//! - Memory: one cached form for each object of each watched kind, in every replica, leader or not: what
//!   [`Cached::decode`] keeps, and its key.
//! - Requests: one watch for each watched kind and namespace (or all of them), and a standby's of the Lease, each opened anew
//!   after 290 s; each write that is to be made; a renewal of the Lease every `retry_period`. At rest there are no others, but for
//!   reviews of the tokens that scrape, if [`http.metrics_auth`](config::Http::metrics_auth) is on: a resync sends none where
//!   nothing is to be done.
//! - Time: one thread. A reconcile that waits for a request blocks nobody; one that computes holds up all others, and
//!   [`Store::for_each`] holds up the store.
//! - A failover: `lease_duration` where a leader dies; where it stops, as long as its running work takes.
//!
//! # Only a part of it
//!
//! An operator that keeps kube's own `Controller` takes the election and the fence alone: a [`candidate()`], which publishes
//! the term and has the client that writes only under it, as in `examples/kube_controller.rs`.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests are outside"))]

mod api;
mod cache;
pub mod client;
mod cmd;
pub mod config;
mod controller;
pub mod election;
mod reconcile;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use api::{
    failure::{Failure, Retry, brief},
    key::Key,
    kind::Kind,
    names as dns,
    object::{Cached, Field, Finalizable, Meta, Metadata, Object, Owner, OwnerReference, Primary},
    plain::{Custom, Dependent, Fields, Spec, condition},
};
pub use cache::store::{Snapshot, Store};
pub use client::transport;
pub use cmd::{
    cli::{command, main},
    run::{Candidate, Error, candidate, run},
};
pub use config::{app::App, environment::Host, settings::Config};
#[cfg(any(test, feature = "testing"))]
pub use controller::Controller;
pub use controller::{Died, builder::Builder};
pub use reconcile::{
    error::ApiError,
    reconciler::{Action, Context, Reconciler},
    writer::{Patched, Writer, finalizer::Finalizer, wanted},
};
pub use telemetry::events::event::Event;
