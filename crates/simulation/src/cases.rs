//! Lookup of plans by name.

use super::{found, one_fault, plan::Plan, program::Program, responses, scripts};

/// Programs besides Foo, with the names of their seeds.
pub const OTHERS: [(&str, Program); 3] = [
    ("databases", Program::Databases),
    ("shops", Program::Shops),
    ("installations", Program::Installations),
];

/// Returns the plan with this name, if any. The lookup does not run the operator. So it finds the faults of every possible
/// leader, and variations for calls that the operator does not make.
pub fn plan_of(name: &str) -> Option<Plan> {
    let of_seed = || name.strip_prefix("seed ")?.parse().ok().map(Plan::new);
    let of_others = || {
        let mut programs = OTHERS.into_iter();
        let (_, program) = programs.find(|(of, _)| name.starts_with(&format!("{of} ")))?;
        let (_, seed) = name.split_once(' ')?;
        Some(Plan::of(program, seed.parse().ok()?))
    };
    let of_whole = || {
        let mut all = whole().into_iter();
        all.find(|(its, _)| its == name).map(|(_, plan)| plan)
    };
    let of_fault = || {
        let mut all = (0..one_fault::REPLICAS).flat_map(one_fault::of_leader);
        let (_, (faults, lasts)) = all.find(|(its, _)| its == name)?;
        let [with, _] = one_fault::with_and_without(&faults, lasts);
        Some(with)
    };
    let of_response = || {
        let mut all = responses::all().into_iter();
        all.find(|(its, _)| its == name)
            .map(|(_, case)| case.plan())
    };
    let of_variation = || {
        let (script, _) = name.split_once(": ")?;
        let mut scripts = scripts::all().into_iter();
        scripts.find(|its| its.name == script)?.variation(name)
    };
    of_seed()
        .or_else(of_others)
        .or_else(of_whole)
        .or_else(of_fault)
        .or_else(of_response)
        .or_else(of_variation)
}

/// Regressions and scripts, with their names.
pub fn whole() -> Vec<(String, Plan)> {
    let scripts = scripts::all().into_iter();
    let scripts = scripts.map(|script| (script.name.to_owned(), script.itself()));
    found::all().into_iter().chain(scripts).collect()
}

pub fn named(seeds: impl IntoIterator<Item = u64>) -> Vec<(String, u64)> {
    let seeds = seeds.into_iter();
    seeds.map(|seed| (format!("seed {seed}"), seed)).collect()
}
