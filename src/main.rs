//! The program `foo-controller`.

use std::process::ExitCode;

use foo_controller::{APP, foo};

fn main() -> ExitCode {
    operator_runtime::main(&APP, || vec![foo::api::crd()], foo::build)
}
