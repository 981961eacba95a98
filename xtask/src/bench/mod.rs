//! Compares this controller with one based on controller-runtime (`benches/peer`), one on kube-rs (`benches/kube-rs`), and
//! with the bare API server. Flags select measures of this controller alone: Secrets, isolation, failover. `benches/README.md`
//! describes the measures and how to read them.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and bytes, far below where it matters"
)]

mod bare;
mod chart;
mod conditions;
mod failover;
mod isolation;
mod load;
mod meter;
mod plane;
mod process;
mod report;
mod secrets;
mod sockets;
mod watch;
mod workloads;
mod writes;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Arg, ArgAction, Command, value_parser};

use report::{Results, Scale, Side, Workload};
use workloads::Bench;

const FULL: Scale = Scale {
    sides: &[
        Side::Ours,
        Side::Shipped,
        Side::Tuned,
        Side::Defaults,
        Side::KubeRs,
    ],
    pairs: 5,
    some: 1_000,
    many: 10_000,
    most: 100_000,
    steady: Duration::from_secs(3),
    idle: Duration::from_secs(8),
    resync: Duration::from_secs(6),
};

/// A short run that checks that every workload works.
const QUICK: Scale = Scale {
    sides: &[Side::Ours, Side::Shipped, Side::Tuned],
    pairs: 1,
    some: 60,
    many: 500,
    most: 1_000,
    steady: Duration::from_secs(1),
    idle: Duration::from_secs(1),
    resync: Duration::from_secs(2),
};

#[tokio::main]
pub async fn run(arguments: &[String]) -> ExitCode {
    let flags = Command::new("bench")
        .about("Measures this controller and one made with controller-runtime, side by side")
        .arg(
            Arg::new("quick")
                .long("quick")
                .action(ArgAction::SetTrue)
                .help("Short run that checks every workload"),
        )
        .arg(
            Arg::new("pairs")
                .long("pairs")
                .value_name("N")
                .value_parser(value_parser!(u8).range(1..))
                .help("Number of repetitions; default: 5"),
        )
        .arg(
            Arg::new("workload")
                .long("workload")
                .action(ArgAction::Append)
                .value_parser(Workload::NAMES)
                .help("Only this workload and its prerequisites; default: all except `most`"),
        )
        .arg(
            Arg::new("secrets")
                .long("secrets")
                .action(ArgAction::SetTrue)
                .help("Only the memory with 10,000 Secrets, of which 10 are read"),
        )
        .arg(
            Arg::new("isolation")
                .long("isolation")
                .action(ArgAction::SetTrue)
                .help("Only the isolation of the controllers of one program"),
        )
        .arg(
            Arg::new("failover")
                .long("failover")
                .action(ArgAction::SetTrue)
                .help("Only the failover after a leader was killed, with the default Lease and with components/fast-failover"),
        )
        .no_binary_name(true)
        .get_matches_from(arguments);
    if flags.get_flag("secrets") {
        secrets::run().await;
        return ExitCode::SUCCESS;
    }
    if flags.get_flag("isolation") {
        isolation::run().await;
        return ExitCode::SUCCESS;
    }
    let quick = flags.get_flag("quick");
    if flags.get_flag("failover") {
        return failover::run(if quick {
            &failover::QUICK
        } else {
            &failover::FULL
        })
        .await;
    }
    let mut scale = if quick { QUICK } else { FULL };
    let pairs = flags
        .get_one::<u8>("pairs")
        .map(|pairs| usize::from(*pairs));
    scale.pairs = pairs.unwrap_or(scale.pairs);
    let default = Workload::NAMES.iter().filter(|name| **name != "most");
    let wanted: BTreeSet<String> = match flags.get_many::<String>("workload") {
        Some(names) => names.cloned().collect(),
        None => default.map(|name| (*name).to_owned()).collect(),
    };
    let is_whole =
        !quick && pairs.is_none_or(|pairs| pairs >= FULL.pairs) && !flags.contains_id("workload");
    // Only the results of one complete run are published.
    let folder = if is_whole {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/results")
    } else {
        release_folder().join("bench")
    };
    let mut bench = Bench::new(scale.clone(), wanted);
    bench.run().await;
    let results = Results {
        conditions: bench.conditions.expect("a workload was run"),
        samples: bench.samples,
        scale,
    };
    println!("{}", results.tables());
    let build = release_folder().join("bench");
    write(&folder, &build, &results);
    eprintln!(
        "tables and plots: {}; samples: {}",
        folder.display(),
        build.display()
    );
    ExitCode::SUCCESS
}

fn write(folder: &Path, build: &Path, results: &Results) {
    fs::create_dir_all(folder).unwrap();
    fs::create_dir_all(build).unwrap();
    let json = serde_json::to_vec_pretty(results).unwrap();
    fs::write(build.join("samples.json"), json).unwrap();
    fs::write(folder.join("tables.md"), results.tables()).unwrap();
    fs::write(folder.join("ratios.svg"), chart::ratios(results)).unwrap();
    fs::write(folder.join("latencies.svg"), chart::latencies(results)).unwrap();
}

/// Returns `target/release`, which contains this program and the controllers.
fn release_folder() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.parent().unwrap().to_owned()
}
