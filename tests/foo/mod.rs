//! Reconciles: the Deployment and the status that result from each Foo.

mod admission;
mod campaign;
mod conditions;
mod control;
mod difference;
mod gitops;
mod hostile;
mod in_memory;
mod installations;
mod mended;
mod rollouts;
mod scenarios;
mod second_kind;
