//! The command line: `--seed 17` reports one schedule, `--seeds 2000` judges many.

use std::{
    collections::BTreeSet,
    mem,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use parking_lot::Mutex;

use super::{
    cases::{Programs, Repository, named, plan_of, programs, whole},
    judge::{Violation, examine},
    plan::Plan,
    program::Program,
    scripts, seeds,
    shrink::{as_arguments, shrink, source},
    subject::Operator,
};

/// Prefix of a line that reports a violation. If there are many cases, the number, the name and the invariants of the case
/// follow, separated by tabs.
pub const VIOLATED: &str = "violated: ";

/// Runs an operator under simulation, as the arguments of this process specify: see `--help`. The seeds of one run are judged
/// on all cores.
pub fn main(program: impl Program + 'static) -> ExitCode {
    run(Programs::of(program))
}

/// Runs the operators of the repository of the runtime, and others.
pub fn of_repository(
    main: &'static dyn Program,
    repository: Repository,
    others: impl IntoIterator<Item = Operator>,
) -> ExitCode {
    run(Programs::of_repository(main, repository, others))
}

fn run(these: Programs) -> ExitCode {
    let arguments = arguments().get_matches();
    match arguments.get_one::<String>("program") {
        None => these.register(),
        Some(name) => {
            let Some(one) = these.only(name) else {
                eprintln!("no operator is named {name:?}");
                return ExitCode::FAILURE;
            };
            one.register();
        }
    }
    for program in programs().all() {
        if let Err(why) = program.check() {
            eprintln!("{}: {why}", program.app().name);
            return ExitCode::FAILURE;
        }
    }
    single(&arguments).unwrap_or_else(|| judge_all(&arguments))
}

/// Runs one seed or case, or the mutants, if the command line specifies any of them.
fn single(arguments: &ArgMatches) -> Option<ExitCode> {
    if let Some(seed) = arguments.get_one::<u64>("seed") {
        let left_out: Vec<_> = arguments
            .get_many::<u64>("without")
            .into_iter()
            .flatten()
            .copied()
            .collect();
        let mut plan = Plan::of(programs().main, *seed);
        let mut step = 0..;
        plan.steps
            .retain(|_| step.next().is_none_or(|step| !left_out.contains(&step)));
        return Some(report(
            &plan,
            arguments.get_one::<String>("shrink").map(String::as_str),
            arguments.get_flag("twice"),
        ));
    }
    if let Some(name) = arguments.get_one::<String>("report") {
        let Some(plan) = plan_of(name) else {
            eprintln!("unknown case {name:?}");
            return Some(ExitCode::FAILURE);
        };
        return Some(report(&plan, None, false));
    }
    if let Some(parts) = arguments.get_one::<String>("mutants") {
        let Some(repository) = &programs().repository else {
            eprintln!(
                "--mutants needs the repository of operator-runtime: run `make mutants` there"
            );
            return Some(ExitCode::FAILURE);
        };
        return Some(exit((repository.mutants)(parts)));
    }
    if let Some(name) = arguments.get_one::<String>("case") {
        let Some(plan) = plan_of(name) else {
            eprintln!("unknown case {name:?}");
            return Some(ExitCode::FAILURE);
        };
        let found = examine(&plan).0;
        for violation in &found {
            println!("{VIOLATED}{violation}");
        }
        return Some(exit(found.is_empty()));
    }
    None
}

/// Judges scripts, faults and seeds.
fn judge_all(arguments: &ArgMatches) -> ExitCode {
    let number = |name: &str| arguments.get_one::<u64>(name).copied();
    let only = arguments.get_one::<String>("only");
    let is_chosen = |name: &str| only.is_none_or(|only| only == name);
    let first = arguments.get_flag("first");
    let how = How {
        first,
        tells: arguments.get_flag("tell"),
    };
    let mut cases = whole();
    cases.retain(|(name, _)| is_chosen(name));
    let scripts = || all(&cases, "scripts", how, |plan| examine(plan).0);
    let variations = || exhaustive(how, is_chosen);
    let chosen = |mut seeds: Vec<(String, u64)>| {
        seeds.retain(|(name, _)| is_chosen(name));
        seeds
    };
    let judged = || {
        let (from, count) = (number("from").unwrap_or(1), number("seeds").unwrap_or(1000));
        let check = if arguments.get_flag("twice") {
            |seed: &u64| twice(*seed)
        } else {
            |seed: &u64| examine(&Plan::of(programs().main, *seed)).0
        };
        all(&chosen(named(from..from + count)), "seeds", how, check)
    };
    let of_others = || {
        let (from, count) = (
            number("from").unwrap_or(1),
            number("seeds").unwrap_or(1000) / 5 + 1,
        );
        let of = |seed: u64| {
            let all = programs().others.iter();
            all.map(move |(name, program)| (format!("{name} {seed}"), (*program, seed)))
        };
        let mut seeds: Vec<_> = (from..from + count).flat_map(of).collect();
        seeds.retain(|(name, _)| is_chosen(name));
        all(&seeds, "seeds of the examples", how, |(program, seed)| {
            examine(&Plan::of(*program, *seed)).0
        })
    };
    let more = programs().repository.iter().flat_map(|it| it.more);
    let more = more.map(|sort| {
        move || {
            let mut cases = (sort.all)();
            cases.retain(|(name, _)| is_chosen(name));
            all(&cases, sort.what, how, |case| case())
        }
    });
    let more: Vec<_> = more.collect();
    let again = || {
        let few = chosen(named(seeds::of_everything(programs().main)));
        all(&few, "seeds, each twice", how, |seed| twice(*seed))
    };
    let mut parts: Vec<&dyn Fn() -> Judged> = vec![&scripts];
    if arguments.get_flag("exhaustive") {
        parts.push(&variations);
    } else {
        parts.extend(more.iter().map(|part| part as &dyn Fn() -> Judged));
        parts.push(&again);
        if programs().repository.is_some() {
            parts.push(&of_others);
        }
        parts.push(&judged);
    }
    let (mut cases, mut wrong) = (0, Vec::new());
    for part in parts {
        if wrong.is_empty() || !first {
            let mut judged = part();
            cases += judged.cases;
            wrong.append(&mut judged.wrong);
        }
    }
    if cases == 0 {
        eprintln!("no case matches --only");
    }
    if !wrong.is_empty() && !first {
        let plans = wrong.iter().filter_map(|name| Some((name, plan_of(name)?)));
        for (name, plan) in plans.take(SHRUNK) {
            for source in shortest(&plan, None) {
                println!("{name}, shrunk:\n{source}");
            }
        }
        // The cases of all parts.
        let names = wrong.join(", ");
        println!(
            "{} of {cases} cases violate an invariant: {names}",
            wrong.len()
        );
    }
    exit(cases > 0 && wrong.is_empty())
}

fn exit(is_well: bool) -> ExitCode {
    if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Options for judging: stop at the first violation, and log the start and end of each case to standard error.
#[derive(Clone, Copy)]
struct How {
    first: bool,
    tells: bool,
}

/// Number of violating cases that are shrunk and printed. Shrinking takes half a minute each.
const SHRUNK: usize = 3;

/// Number of judged cases, and the names of the cases with violations.
struct Judged {
    cases: usize,
    wrong: Vec<String>,
}

/// Runs a seed here and in another process, and compares the runs. The other process has run nothing before and has other hash
/// keys.
fn twice(seed: u64) -> Vec<Violation> {
    let plan = Plan::of(programs().main, seed);
    let (found, world) = examine(&plan);
    if !found.is_empty() {
        return found;
    }
    let lines = world.trace.lines(&world.store).join("\n");
    let one = format!("{plan}{lines}\n{}\n", world.trace.records());
    let program = std::env::current_exe().unwrap();
    let mut other = std::process::Command::new(program);
    other.args(["--twice", "--seed", &seed.to_string()]);
    if programs().repository.is_none() {
        other.args(["--program", programs().main.app().name]);
    }
    let other = other.output().unwrap();
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
        .arg(
            Arg::new("report")
                .long("report")
                .value_name("NAME")
                .help("Report the run of one case by name, as of a seed"),
        )
        .arg(number("without", "Leave these of its steps out").value_delimiter(',').requires("seed"))
        .arg(
            Arg::new("shrink")
                .long("shrink")
                .value_name("INVARIANT")
                .requires("seed")
                .help("Remove steps, and print the shortest plan that still violates this invariant"),
        )
        .arg(number("seeds", "Judge so many seeds [default: 1000]").value_parser(value_parser!(u64).range(1..)))
        .arg(number("from", "From this one on [default: 1]"))
        .arg(flag("exhaustive", "Judge the scripts, with every fault at every place"))
        .arg(
            Arg::new("mutants")
                .long("mutants")
                .value_name("PARTS")
                .help("Take out each protection whose name contains this, or one of these (`|` between), and see that it is found"),
        )
        .arg(
            Arg::new("program")
                .long("program")
                .value_name("NAME")
                .help("Run only the operator of this name, whose cases are then named `seed 17`"),
        )
        .arg(flag("first", "End with the first violation"))
        .arg(flag("tell", "Log the start and end of each case to standard error"))
        .arg(
            Arg::new("case")
                .long("case")
                .value_name("NAME")
                .help("Judge one case by name, without running its script first"),
        )
        .arg(
            Arg::new("only")
                .long("only")
                .value_name("NAME")
                .help("Judge the one of them that has this name; of a script, each fault at every place"),
        )
        .arg(flag("twice", "Run each seed in another process, too, and see that all that is judged is the same; of one seed, report all that"))
}

/// Prints one run. With `is_whole`, also prints all judged records, for the comparison of `--twice`.
fn report(plan: &Plan, invariant: Option<&str>, is_whole: bool) -> ExitCode {
    if invariant.is_some() {
        let sources = shortest(plan, invariant);
        for source in &sources {
            println!("{source}");
        }
        return exit(!sources.is_empty());
    }
    let (found, world) = examine(plan);
    print!("{plan}");
    for line in world.trace.lines(&world.store) {
        println!("{line}");
    }
    if is_whole {
        println!("{}", world.trace.records());
    }
    for violation in &found {
        println!("{VIOLATED}{violation}");
    }
    exit(found.is_empty())
}

/// Shrinks a plan for each violated invariant, or only for `invariant`. Returns each shortest plan that still violates it in the
/// same way: as Rust for a regression case, or as text if the operator has no regression cases.
fn shortest(plan: &Plan, invariant: Option<&str>) -> Vec<String> {
    let (mut found, _) = examine(plan);
    found.retain(|violation| invariant.is_none_or(|invariant| violation.invariant == invariant));
    found.sort_by_key(|violation| violation.invariant);
    found.dedup_by_key(|violation| violation.invariant);
    if found.is_empty() {
        eprintln!("nothing of the kind is violated");
    }
    let sources = found.iter().map(|violation| {
        let mut least = shrink(plan, violation, &|plan| examine(plan).0);
        if plan.program.types().is_none() {
            // The arguments of a seed only leave out steps.
            let steps = mem::take(&mut least.steps);
            least = Plan {
                steps,
                ..plan.clone()
            };
        }
        let (found, _) = examine(&least);
        let mut its = found.iter();
        let why = its.find(|other| other.is_like(violation));
        let why = why.map_or_else(String::new, ToString::to_string);
        if plan.program.types().is_some() {
            return source(&least, &format!("seed_{}", plan.seed), &why);
        }
        let arguments = as_arguments(&least).unwrap_or_default();
        format!("{least}{VIOLATED}{why}\n{arguments}")
    });
    sources.collect()
}

/// Judges every variation of every script.
fn exhaustive(how: How, is_chosen: impl Fn(&str) -> bool) -> Judged {
    let mut variations = Vec::new();
    for script in scripts::all() {
        how.tell("begins", &script.name);
        let world = examine(&script.plan).1;
        how.tell("ends", &script.name);
        let mut its = script.variations(&world.trace);
        its.retain(|(name, _)| is_chosen(&script.name) || is_chosen(name));
        variations.append(&mut its);
    }
    let vain = AtomicUsize::new(0);
    let judged = all(&variations, "runs", how, |plan| {
        let (mut found, world) = examine(plan);
        let (is_met, is_felt) = scripts::is_met(plan, &world.trace);
        if !is_met {
            found.push(Violation::of_the_run("the fault meets no call".to_owned()));
        }
        vain.fetch_add(usize::from(!is_felt), Relaxed);
        found
    });
    let vain = vain.into_inner();
    println!("in {vain} of the runs there was nothing for the fault to be done to");
    judged
}

impl How {
    fn tell(self, what: &str, name: &str) {
        if self.tells {
            eprintln!("{what}\t{name}");
        }
    }
}

/// Judges the cases on all cores. Prints each violation and a summary.
fn all<T: Sync>(
    cases: &[(String, T)],
    what: &str,
    how: How,
    judged: impl Fn(&T) -> Vec<Violation> + Sync,
) -> Judged {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let wrong = Mutex::new(Vec::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        while let Some((name, case)) = cases.get(next.fetch_add(1, Relaxed)) {
            let number = next.load(Relaxed);
            if number % 100 == 0 {
                eprintln!("{number} of {} {what}", cases.len());
            }
            how.tell("begins", name);
            let found = judged(case);
            done.fetch_add(1, Relaxed);
            if let Some(violation) = found.first() {
                let invariants = found.iter().map(|violation| violation.invariant);
                let invariants: BTreeSet<_> = invariants.collect();
                let invariants = Vec::from_iter(invariants).join(" ");
                println!(
                    "{VIOLATED}{number}\t{name}\t{invariants}\t{violation} ({} in all)",
                    found.len()
                );
                wrong.lock().push(name.clone());
                if how.first {
                    next.store(cases.len(), Relaxed);
                }
            }
            how.tell("ends", name);
        }
    };
    thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let (done, wrong) = (done.into_inner(), wrong.into_inner());
    println!(
        "{done} {what}, {} violations{}{}",
        wrong.len(),
        if wrong.is_empty() { "" } else { ": " },
        wrong.join(", ")
    );
    Judged { cases: done, wrong }
}
