//! Runs schedules of the whole operator under simulation: `simulate --seed 17` reports one, `simulate --seeds 2000` judges many.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program whose user reads what it prints, and which fails by panicking"
)]

/// What of the tests' cluster the checker of invariants takes.
#[path = "../cluster/audit.rs"]
#[allow(dead_code, reason = "no log is read here")]
mod cluster;
#[path = "../invariants/mod.rs"]
mod invariants;
#[path = "mod.rs"]
mod simulation;

use std::{
    collections::BTreeSet,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use clap::{Arg, ArgAction, Command, value_parser};
use parking_lot::Mutex;
use simulation::{
    found,
    judge::{Violation, examine},
    mutants::{self, VIOLATED},
    one_fault,
    plan::Plan,
    scripts, seeds,
    shrink::{shrink, source},
};

fn main() -> ExitCode {
    let arguments = arguments().get_matches();
    let number = |name: &str| arguments.get_one::<u64>(name).copied();
    if let Some(seed) = number("seed") {
        let left_out: Vec<_> = arguments
            .get_many::<u64>("without")
            .into_iter()
            .flatten()
            .copied()
            .collect();
        let mut plan = Plan::new(seed);
        let mut step = 0..;
        plan.steps
            .retain(|_| step.next().is_none_or(|step| !left_out.contains(&step)));
        return report(
            &plan,
            arguments.get_one::<String>("shrink").map(String::as_str),
        );
    }
    if let Some(part) = arguments.get_one::<String>("mutants") {
        let missed = mutants::run(part);
        return if missed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    let first = arguments.get_flag("first");
    let only = arguments.get_one::<String>("only");
    let is_chosen = |name: &str| only.is_none_or(|only| only == name);
    let scripts = scripts::all().into_iter();
    let scripts = scripts.map(|script| (script.name.to_owned(), script.itself()));
    let mut cases: Vec<_> = found::all().into_iter().chain(scripts).collect();
    cases.retain(|(name, _)| is_chosen(name));
    let scripts = || all(&cases, "scripts", first, |plan| examine(plan).0);
    let variations = || exhaustive(first, is_chosen);
    let judged = || {
        let (from, count) = (number("from").unwrap_or(1), number("seeds").unwrap_or(1000));
        let check = if arguments.get_flag("twice") {
            |seed: &u64| twice(*seed)
        } else {
            |seed: &u64| examine(&Plan::new(*seed)).0
        };
        all(&named(from..from + count, is_chosen), "seeds", first, check)
    };
    let faults = || {
        let (mut faults, calm) = (one_fault::all(), one_fault::Calm::default());
        faults.retain(|(name, _)| is_chosen(name));
        all(&faults, "faults", first, |fault| {
            one_fault::got_over(fault, &calm)
        })
    };
    let again = || {
        let few = named(seeds::of_everything(), is_chosen);
        all(&few, "seeds, each twice", first, |seed| twice(*seed))
    };
    let parts: &[&dyn Fn() -> usize] = if arguments.get_flag("exhaustive") {
        &[&scripts, &variations]
    } else {
        &[&scripts, &faults, &again, &judged]
    };
    let mut wrong = 0;
    for part in parts {
        if wrong == 0 || !first {
            wrong += part();
        }
    }
    if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Those of the seeds that are chosen, with their names.
fn named(
    seeds: impl IntoIterator<Item = u64>,
    is_chosen: impl Fn(&str) -> bool,
) -> Vec<(String, u64)> {
    let all = seeds.into_iter().map(|seed| (format!("seed {seed}"), seed));
    all.filter(|(name, _)| is_chosen(name)).collect()
}

/// Whether a seed is one run, here and in another process, which has done nothing else before and has other hash keys.
fn twice(seed: u64) -> Vec<Violation> {
    let plan = Plan::new(seed);
    let (found, world) = examine(&plan);
    let Some(world) = world.filter(|_| found.is_empty()) else {
        return found;
    };
    let lines = world.trace.lines(&world.store).join("\n");
    let one = format!("{plan}{lines}\n");
    let program = std::env::current_exe().unwrap();
    let mut other = std::process::Command::new(program);
    let other = other.args(["--seed", &seed.to_string()]).output().unwrap();
    let other = String::from_utf8(other.stdout).unwrap();
    let mut both = one.lines().zip(other.lines());
    let what = match both.find(|(one, other)| one != other) {
        Some((one, other)) => format!("{one:?} the first time, {other:?} the second"),
        None if one.len() == other.len() => return found,
        None => format!("{} bytes here, {} there", one.len(), other.len()),
    };
    vec![Violation::of_the_run(what)]
}

fn arguments() -> Command {
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("N")
            .value_parser(value_parser!(u64))
            .help(help)
    };
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .action(ArgAction::SetTrue)
            .help(help)
    };
    Command::new("simulate")
        .about("Runs the whole operator under simulation, and judges what it did")
        .arg(number("seed", "Report the run of this seed, and nothing else"))
        .arg(number("without", "Leave these of its steps out").value_delimiter(',').requires("seed"))
        .arg(
            Arg::new("shrink")
                .long("shrink")
                .value_name("INVARIANT")
                .requires("seed")
                .help("Print, as Rust, the shortest plan that is left of it that violates this invariant"),
        )
        .arg(number("seeds", "Judge so many seeds [default: 1000]"))
        .arg(number("from", "From this one on [default: 1]"))
        .arg(flag("exhaustive", "Judge the scripts, with every fault at every place"))
        .arg(
            Arg::new("mutants")
                .long("mutants")
                .value_name("NAME")
                .help("Take out each protection whose name contains this, and see that it is found"),
        )
        .arg(flag("first", "End with the first violation"))
        .arg(
            Arg::new("only")
                .long("only")
                .value_name("NAME")
                .help("Judge the one of them that has this name; of a script, each fault at every place"),
        )
        .arg(flag("twice", "Run each seed in another process, too, and see that the traces are the same"))
}

/// One run, in words.
fn report(plan: &Plan, invariant: Option<&str>) -> ExitCode {
    if let Some(invariant) = invariant {
        let least = shrink(plan, invariant, &|plan| examine(plan).0);
        let (found, _) = examine(&least);
        let why = found
            .iter()
            .find(|violation| violation.invariant == invariant);
        let why = why.map_or_else(|| "Not found.".to_owned(), ToString::to_string);
        println!("{}", source(&least, &format!("seed_{}", plan.seed), &why));
        return ExitCode::SUCCESS;
    }
    let (found, world) = examine(plan);
    print!("{plan}");
    for line in world
        .iter()
        .flat_map(|world| world.trace.lines(&world.store))
    {
        println!("{line}");
    }
    for violation in &found {
        println!("{VIOLATED}{violation}");
    }
    if found.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Every variation of every script.
fn exhaustive(first: bool, is_chosen: impl Fn(&str) -> bool) -> usize {
    let mut variations = Vec::new();
    for script in scripts::all() {
        let world = examine(&script.plan).1;
        for plan in world.map_or_else(Vec::new, |world| script.variations(&world.trace)) {
            let what = plan.steps.last().map(|step| step.what.to_string());
            let name = format!("{}: {}", script.name, what.unwrap_or_default());
            if is_chosen(script.name) || is_chosen(&name) {
                variations.push((name, plan));
            }
        }
    }
    let vain = AtomicUsize::new(0);
    let wrong = all(&variations, "runs", first, |plan| {
        let (mut found, world) = examine(plan);
        let (is_met, is_felt) =
            world.map_or((true, true), |world| scripts::is_met(plan, &world.trace));
        if !is_met {
            found.push(Violation::of_the_run("the fault meets no call".to_owned()));
        }
        vain.fetch_add(usize::from(!is_felt), Relaxed);
        found
    });
    let vain = vain.into_inner();
    println!("in {vain} of the runs there was nothing for the fault to be done to");
    wrong
}

/// Judges all of them, on all cores; says what is wrong with each, and at the end how many there were. Returns how many
/// violate anything.
fn all<T: Sync>(
    cases: &[(String, T)],
    what: &str,
    first: bool,
    judged: impl Fn(&T) -> Vec<Violation> + Sync,
) -> usize {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        while let Some((name, case)) = cases.get(next.fetch_add(1, Relaxed)) {
            let number = next.load(Relaxed);
            if number % 100 == 0 {
                eprintln!("{number} of {} {what}", cases.len());
            }
            let found = judged(case);
            if let Some(violation) = found.first() {
                let invariants = found.iter().map(|violation| violation.invariant);
                let invariants: BTreeSet<_> = invariants.collect();
                let invariants = Vec::from_iter(invariants).join(" ");
                println!(
                    "{VIOLATED}{number}\t{name}\t{invariants}\t{violation} ({} in all)",
                    found.len()
                );
                wrong.lock().push(name.clone());
                if first {
                    next.store(cases.len(), Relaxed);
                }
            }
        }
    };
    thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner();
    println!(
        "{} {what}, {} violations{}{}",
        cases.len(),
        wrong.len(),
        if wrong.is_empty() { "" } else { ": " },
        wrong.join(", ")
    );
    wrong.len()
}
