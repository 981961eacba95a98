//! Runs the operators of this repository under simulation: `simulate --seed 17` reports one schedule, `simulate --seeds 2000` judges
//! many.

use std::process::ExitCode;

/// Example of the runtime with a finalizer and a Secret that it reads.
#[allow(dead_code, reason = "a program of its own")]
#[path = "../examples/relay.rs"]
mod relay;

/// An operator with a finalizer over a slow API.
#[path = "../examples/bucket/main.rs"]
mod bucket;

fn main() -> ExitCode {
    operator_simulation::command::of_repository([relay::operator(), bucket::operator()])
}
