//! Integration tests, linked into one program so that shared code is built once. The head of each file describes it, and
//! README.md in this folder has the commands. To run one file: `cargo test --test integration scenarios::`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

mod delivery;
mod failures;
mod foo;
mod leadership;
mod process;
mod support;
