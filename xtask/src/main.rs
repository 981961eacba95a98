//! Commands of developers. The Makefile and `tests/demo.sh` call them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program whose user reads what it prints, and which fails by panicking"
)]

mod bench;
mod cluster;
mod generate;
mod receive;
mod trace;

use std::process::ExitCode;

const USAGE: &str = "usage: xtask COMMAND [ARGUMENTS]
  bench     compare with controller-runtime (make bench)
  cluster   run a control plane until stdin ends; with --memory: one in memory
  generate  write the generated files (make generate)
  merge-keys
            write the merge keys of the API (make merge-keys)
  receive   write received traces and logs to a folder, in place of a collector
  trace     show the traces of a Foo that a collector has received";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let Some((command, arguments)) = arguments.split_first() else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    match command.as_str() {
        "bench" => bench::run(arguments),
        "cluster" => cluster::run(arguments),
        "generate" => generate::run(),
        "merge-keys" => generate::merge_keys::run(),
        "receive" => receive::run(arguments),
        "trace" => trace::run(arguments),
        other => {
            eprintln!("unknown command {other}\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}
