//! Support code of the tests, and the tests of this code.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

mod checker;
pub mod controller;
mod differential;
pub mod fencing;
pub mod fleet;
pub mod foos;
mod harness;
pub mod installations;
mod observers;

/// Returns the folder of the programs that `tests/tools/build.sh` builds for `module`. The first call takes minutes.
pub fn built(module: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/build.sh");
    let output = Command::new(script).arg(module).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
}
