//! What the controller does to Foos and Deployments.

mod admission;
mod campaign;
mod conditions;
mod hostile;
mod mended;
mod rollouts;
mod scenarios;
mod second_kind;
