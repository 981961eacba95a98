//! Runs the operators of this repository under simulation: `simulate --seed 17` reports one schedule, `simulate --seeds 2000` judges
//! many.

use std::process::ExitCode;

use foo_simulation::{Foo, REPOSITORY};

/// The operator of Foos, without the users and judges of this package.
#[allow(dead_code, reason = "a program of its own")]
#[path = "../examples/foo.rs"]
mod foo;

/// Example of the runtime with a finalizer and a Secret that it reads.
#[allow(dead_code, reason = "a program of its own")]
#[path = "../../../crates/simulation/examples/relay.rs"]
mod relay;

/// An operator with a finalizer over a slow API.
#[path = "../../../crates/simulation/examples/bucket/main.rs"]
mod bucket;

/// The allocator of the system takes a fifth of a run, because a run allocates and frees many small JSON values.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let others = [relay::operator(), bucket::operator(), foo::operator()];
    operator_simulation::command::of_repository(&Foo, REPOSITORY, others)
}
