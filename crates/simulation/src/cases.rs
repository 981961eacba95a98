//! Lookup of plans by name.

use std::sync::OnceLock;

use super::{judge::Violation, plan::Plan, program::Program, scripts, subject::Operator};

/// The operators that this process runs.
pub struct Programs {
    /// The operator of the cases `seed 17`.
    pub main: &'static dyn Program,
    /// Other operators, with the names of their seeds.
    pub others: Vec<(&'static str, &'static dyn Program)>,
    /// Cases and mutants of the repository of the runtime.
    pub repository: Option<Repository>,
}

/// Cases of the repository of the runtime.
pub struct Repository {
    /// Other operators, with the names of their seeds.
    pub others: &'static [(&'static str, &'static dyn Program)],
    /// Regression cases.
    pub found: fn() -> Vec<(String, Plan)>,
    pub more: &'static [Cases],
    /// Runs the mutants whose names contain one of these parts. Returns whether all were found.
    pub mutants: fn(parts: &str) -> bool,
}

/// Cases of one sort, with their names.
pub struct Cases {
    pub what: &'static str,
    pub all: fn() -> Vec<(String, Case)>,
    pub plan_of: fn(name: &str) -> Option<Plan>,
}

/// Runs a case, and returns its violations.
pub type Case = Box<dyn Fn() -> Vec<Violation> + Send + Sync>;

static PROGRAMS: OnceLock<Programs> = OnceLock::new();

/// Returns the registered operators.
pub fn programs() -> &'static Programs {
    PROGRAMS.get().expect("no operators are registered")
}

impl Programs {
    pub(super) fn of(program: impl Program + 'static) -> Self {
        Self {
            main: Box::leak(Box::new(program)),
            others: Vec::new(),
            repository: None,
        }
    }

    /// The operators of the repository of the runtime, and more.
    pub fn of_repository(
        main: &'static dyn Program,
        repository: Repository,
        more: impl IntoIterator<Item = Operator>,
    ) -> Self {
        let others = repository.others.iter().copied();
        let more = more.into_iter().map(|operator| {
            let program: &'static dyn Program = Box::leak(Box::new(operator));
            (program.app().name, program)
        });
        Self {
            main,
            others: others.chain(more).collect(),
            repository: Some(repository),
        }
    }

    /// Returns the operator of this name alone.
    pub(super) fn only(&self, name: &str) -> Option<Self> {
        // Subjects come first: one may have the name of the main operator, which runs without `--program`.
        let others = self.others.iter().map(|(_, program)| *program);
        let mut all = others.chain([self.main]);
        let main = all.find(|program| program.app().name == name)?;
        Some(Self {
            main,
            others: Vec::new(),
            repository: None,
        })
    }

    /// Makes these the operators of the process, if it has none yet.
    pub fn register(self) {
        _ = PROGRAMS.set(self);
    }

    /// Returns all of them.
    pub fn all(&self) -> impl Iterator<Item = &'static dyn Program> {
        let others = self.others.iter().map(|(_, program)| *program);
        [self.main].into_iter().chain(others)
    }
}

/// Returns the plan with this name, if any. The lookup does not run the operator. So it finds the faults of every possible
/// leader, and variations for calls that the operator does not make.
pub fn plan_of(name: &str) -> Option<Plan> {
    let of_seed = || {
        let seed = name.strip_prefix("seed ")?.parse().ok()?;
        Some(Plan::of(programs().main, seed))
    };
    let of_others = || {
        let mut others = programs().others.iter();
        let (_, program) = others.find(|(of, _)| name.starts_with(&format!("{of} ")))?;
        let (_, seed) = name.split_once(' ')?;
        Some(Plan::of(*program, seed.parse().ok()?))
    };
    let of_whole = || {
        let mut all = whole().into_iter();
        all.find(|(its, _)| its == name).map(|(_, plan)| plan)
    };
    let of_more = || {
        let mut more = programs().repository.iter().flat_map(|it| it.more);
        more.find_map(|sort| (sort.plan_of)(name))
    };
    let of_variation = || {
        let (script, _) = name.split_once(": ")?;
        let mut scripts = scripts::all().into_iter();
        scripts.find(|its| its.name == script)?.variation(name)
    };
    of_seed()
        .or_else(of_others)
        .or_else(of_whole)
        .or_else(of_more)
        .or_else(of_variation)
}

/// Regressions and scripts, with their names.
pub fn whole() -> Vec<(String, Plan)> {
    let scripts = scripts::all().into_iter();
    let scripts = scripts.map(|script| (script.name.clone(), script.itself()));
    let found = programs().repository.as_ref().map(|it| (it.found)());
    found.into_iter().flatten().chain(scripts).collect()
}

pub fn named(seeds: impl IntoIterator<Item = u64>) -> Vec<(String, u64)> {
    let seeds = seeds.into_iter();
    seeds.map(|seed| (format!("seed {seed}"), seed)).collect()
}
