//! The plans that are judged, by name.

use super::{found, one_fault, plan::Plan, scripts};

/// The plan of this name: also where it is another operator's calls, or another leader, that it is about.
pub fn plan_of(name: &str) -> Option<Plan> {
    let of_seed = || name.strip_prefix("seed ")?.parse().ok().map(Plan::new);
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
    let of_variation = || {
        let (script, _) = name.split_once(": ")?;
        let mut scripts = scripts::all().into_iter();
        scripts.find(|its| its.name == script)?.variation(name)
    };
    of_seed()
        .or_else(of_whole)
        .or_else(of_fault)
        .or_else(of_variation)
}

/// What was found before, and the scripts, with their names.
pub fn whole() -> Vec<(String, Plan)> {
    let scripts = scripts::all().into_iter();
    let scripts = scripts.map(|script| (script.name.to_owned(), script.itself()));
    found::all().into_iter().chain(scripts).collect()
}

/// Seeds, with their names.
pub fn named(seeds: impl IntoIterator<Item = u64>) -> Vec<(String, u64)> {
    let seeds = seeds.into_iter();
    seeds.map(|seed| (format!("seed {seed}"), seed)).collect()
}
