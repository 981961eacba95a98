//! The program `foo-controller`.

use std::process::ExitCode;

use foo_controller::{APP, build, crds};

fn main() -> ExitCode {
    operator_runtime::main(&APP, crds, build)
}
