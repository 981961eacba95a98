//! Tests of the simulation itself. More are in `tests/simulation`, with the operators of the repository.

use std::time::Duration;

use super::{
    databases::Databases,
    judge::Violation,
    plan::{Fault, Plan, Step, What},
    shrink::shrink,
};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Shrinking keeps an API server that a fault names.
#[test]
fn shrinking_keeps_the_named_api_server() {
    let killed = |step: &Step| matches!(step.what, What::Fault(Fault::Kill { server: 1 }, _));
    let mut plan = Plan::calm(&Databases, 1, 2, 3, seconds(10));
    plan.settings.workers = 4;
    plan.fault(seconds(2), Fault::Compact, Duration::ZERO);
    plan.fault(seconds(3), Fault::Kill { server: 1 }, seconds(1));
    let shows = |plan: &Plan| {
        let is_shown = plan.steps.iter().any(killed);
        is_shown
            .then(|| Violation::of_the_run(String::new()))
            .into_iter()
            .collect()
    };
    let least = shrink(&plan, &Violation::of_the_run(String::new()), &shows);
    assert_eq!((least.steps.len(), least.servers), (1, 3));
    assert_eq!(least.settings.workers, 1);
}

/// The README contains the whole simulation of an operator. No example needs more than 150 lines.
#[test]
fn an_operator_is_simulated_in_150_lines() {
    let relay = include_str!("../examples/relay.rs");
    let bucket = include_str!("../examples/bucket/main.rs");
    assert!(include_str!("../README.md").contains(relay));
    for example in [relay, bucket] {
        assert!(example.lines().count() <= 150);
    }
}
