//! This controller, one made with controller-runtime (`peer/`), and the bare API server, side by side: `README.md` says what is
//! measured, and how to read it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program whose user reads what it prints, and which fails by panicking"
)]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and bytes, far below where it matters"
)]

mod chart;
#[path = "../tests/cluster/mod.rs"]
mod cluster;
#[path = "../tests/collector/mod.rs"]
mod collector;
mod load;
mod process;
mod report;
mod workloads;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Arg, ArgAction, Command, value_parser};

use report::Sample;
use workloads::{Bench, Scale};

const FULL: Scale = Scale {
    pairs: 5,
    thorough: 1,
    some: 1_000,
    many: 10_000,
    most: 100_000,
    steady: Duration::from_secs(3),
    resync: Duration::from_secs(12),
};

/// Enough to see that all of it works.
const QUICK: Scale = Scale {
    pairs: 1,
    thorough: 1,
    some: 100,
    many: 500,
    most: 1_000,
    steady: Duration::from_secs(1),
    resync: Duration::from_secs(3),
};

#[tokio::main]
async fn main() {
    let flags = Command::new("bench")
        .about("Measures this controller and one made with controller-runtime, side by side")
        .arg(
            Arg::new("quick")
                .long("quick")
                .action(ArgAction::SetTrue)
                .help("A little of everything, to see that it works"),
        )
        .arg(
            Arg::new("pairs")
                .long("pairs")
                .value_name("N")
                .value_parser(value_parser!(u8).range(1..))
                .help("How often all of it is done; default: W1 to W3 five times, the others once"),
        )
        .arg(
            Arg::new("workload")
                .long("workload")
                .action(ArgAction::Append)
                .value_parser(["w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9", "w10"])
                .help("Just this one, and what it builds on; default: all but w9"),
        )
        .get_matches();
    let quick = flags.get_flag("quick");
    let wanted: BTreeSet<_> = match flags.get_many::<String>("workload") {
        Some(names) => names.map(|name| name.to_uppercase()).collect(),
        None => (1..=10)
            .filter(|n| *n != 9)
            .map(|n| format!("W{n}"))
            .collect(),
    };
    let (mut scale, results) = if quick {
        (QUICK, release_folder().join("bench-quick"))
    } else {
        let benches = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches");
        (FULL, benches.join("results"))
    };
    if let Some(pairs) = flags.get_one::<u8>("pairs") {
        scale.pairs = usize::from(*pairs);
        scale.thorough = scale.pairs;
    }
    let mut bench = Bench::new(scale, wanted.clone());
    bench.run().await;
    println!("{}", report::tables(&bench.samples));
    keep(&results, bench.samples, &wanted);
}

/// Writes what the README shows: the samples that were wanted, and of the other workloads those of before.
fn keep(results: &Path, mut samples: Vec<Sample>, wanted: &BTreeSet<String>) {
    samples.retain(|sample| wanted.contains(sample.workload.split(' ').next().unwrap()));
    fs::create_dir_all(results).unwrap();
    let json = results.join("samples.json");
    if let Ok(before) = fs::read(&json) {
        let before: Vec<Sample> = serde_json::from_slice(&before).unwrap();
        let is_new = |old: &Sample| samples.iter().any(|new| new.workload == old.workload);
        let kept: Vec<_> = before.into_iter().filter(|old| !is_new(old)).collect();
        samples.extend(kept);
    }
    fs::write(json, serde_json::to_vec_pretty(&samples).unwrap()).unwrap();
    fs::write(results.join("tables.md"), report::tables(&samples)).unwrap();
    fs::write(results.join("ratios.svg"), chart::ratios(&samples)).unwrap();
    fs::write(results.join("latencies.svg"), chart::latencies(&samples)).unwrap();
}

/// This program is `target/release/examples/bench`; the controllers are in `target/release`.
fn release_folder() -> PathBuf {
    let this = std::env::current_exe().unwrap();
    this.ancestors().nth(2).unwrap().to_owned()
}
