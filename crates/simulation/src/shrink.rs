//! Shrinks a plan to the shortest plan with the same violation, and prints it as the source of a regression case.

use super::{
    judge::Violation,
    plan::{Machine, Plan, Step, What},
    program::Program,
};

/// Maximum number of runs for one plan.
const RUNS: usize = 400;

/// Removes steps, first in halves and then in smaller parts, while `check` finds a [similar](Violation::is_like) violation.
/// Then removes wrong clocks, the fencing component, API servers and workers.
pub fn shrink(plan: &Plan, found: &Violation, check: &dyn Fn(&Plan) -> Vec<Violation>) -> Plan {
    let mut left = RUNS;
    let mut shows = |plan: &Plan| {
        left = left.saturating_sub(1);
        left > 0 && check(plan).iter().any(|other| other.is_like(found))
    };
    let mut plan = plan.clone();
    let mut part = (plan.steps.len() / 2).max(1);
    loop {
        let (mut from, before) = (0, plan.steps.len());
        while from < plan.steps.len() {
            let mut shorter = plan.clone();
            let range = from..(from + part).min(plan.steps.len());
            shorter.steps = without(&plan.steps, range);
            if shorter.steps.len() < plan.steps.len() && shows(&shorter) {
                plan = shorter;
            } else {
                from += part;
            }
        }
        if part == 1 && plan.steps.len() == before {
            break;
        }
        part = (part / 2).max(1);
    }
    let simpler: [fn(&mut Plan); 4] = [
        |plan| {
            plan.replicas
                .iter_mut()
                .for_each(|machine| *machine = Machine::SOUND);
        },
        |plan| plan.fencing = false,
        |plan| {
            let is_named = |step: &Step| match &step.what {
                What::Fault(fault, _) => fault.server() > Some(0),
                _ => false,
            };
            if !plan.steps.iter().any(is_named) {
                plan.servers = 1;
            }
        },
        |plan| plan.settings.workers = 1,
    ];
    for change in simpler {
        let mut changed = plan.clone();
        change(&mut changed);
        if shows(&changed) {
            plan = changed;
        }
    }
    if left == 0 {
        eprintln!("{RUNS} runs were not enough: it may get shorter");
    }
    plan
}

/// Returns the other steps. Steps that end all faults stay.
fn without(steps: &[Step], range: std::ops::Range<usize>) -> Vec<Step> {
    let kept = steps.iter().enumerate();
    kept.filter(|(number, step)| !range.contains(number) || matches!(step.what, What::Heal))
        .map(|(_, step)| step.clone())
        .collect()
}

/// Returns the arguments that reproduce this plan; `None` if it is not the plan of a seed with steps removed.
pub fn as_arguments(plan: &Plan) -> Option<String> {
    let of_seed = Plan::of(plan.program, plan.seed);
    let text = |step: &Step| format!("{step:?}");
    let mut kept = plan.steps.iter().map(text).peekable();
    let steps = of_seed.steps.iter().enumerate();
    let left_out = steps.filter_map(|(number, step)| {
        let is_kept = kept.next_if_eq(&text(step)).is_some();
        (!is_kept).then(|| number.to_string())
    });
    let left_out: Vec<_> = left_out.collect();
    let is_of_seed = kept.peek().is_none() && (plan.rest, plan.end) == (of_seed.rest, of_seed.end);
    let without = match left_out.join(",") {
        none if none.is_empty() => none,
        some => format!(" --without {some}"),
    };
    let name = plan.program.app().name;
    is_of_seed.then(|| format!("--program {name} --seed {}{without}", plan.seed))
}

/// Returns the plan as a case for `found`, in Rust that is not formatted.
pub fn source(plan: &Plan, name: &str, why: &str) -> String {
    let Plan {
        seed,
        program,
        settings,
        replicas,
        servers,
        fencing,
        steps,
        rest,
        end,
    } = plan;
    let source = |debug: &str| rust(*program, debug);
    let steps = steps.iter().map(|Step { at, what }| {
        let at = grouped(&at.as_millis().to_string());
        format!("step({at}, What::{}),\n", source(&format!("{what:?}")))
    });
    let steps: String = steps.collect();
    let settings = source(&format!("{settings:?}"));
    let replicas = if replicas.iter().all(|machine| *machine == Machine::SOUND) {
        format!("[Machine::SOUND; {}]", replicas.len())
    } else {
        source(&format!("{replicas:?}"))
    };
    let (seed, rest, end) = (
        grouped(&seed.to_string()),
        source(&format!("{rest:?}")),
        source(&format!("{end:?}")),
    );
    format!(
        "/// {why}
fn {name}() -> Plan {{
    Plan {{
        seed: {seed},
        program: &{program:?},
        settings: {settings},
        replicas: vec!{replicas},
        servers: {servers},
        fencing: {fencing},
        steps: vec![
            {steps}
        ],
        rest: {rest},
        end: {end},
    }}
}}"
    )
}

/// Text in front of a name, and the type of the name.
const TYPES: [(&str, &str); 11] = [
    ("Action(", "Action"),
    ("what: ", "Meddling"),
    ("Fault(", "Fault"),
    ("Policy(", "Others"),
    ("way: ", "Way"),
    ("role: Some(", "Role"),
    ("happens: ", "Happens"),
    ("then: ", "Then"),
    ("CrashBefore(", "Then"),
    ("CrashAt(", "Then"),
    ("CrashAfter(", "Then"),
];

/// Converts `Debug` output to Rust: adds the types of names, also of this program, and converts numbers and times (`1.5s`
/// is `us(1_500_000)`).
fn rust(program: &dyn Program, debug: &str) -> String {
    let mut named = debug.to_owned();
    for (before, of) in TYPES.iter().chain(program.types().unwrap_or_default()) {
        named = named.replace(before, &format!("{before}{of}::"));
    }
    // The variant holds a type-erased action.
    named = named.replace("Action::User(", "Action::user(");
    let (mut source, mut rest) = (String::new(), &*named);
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(start);
        source.push_str(before);
        let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
        let digits = number.find(|c| !is_of_number(c)).unwrap_or(number.len());
        let (digits, after) = number.split_at(digits);
        let unit = after.find(|c: char| !c.is_alphabetic());
        let (unit, after) = after.split_at(unit.unwrap_or(after.len()));
        let factor = match unit {
            "ns" => Some(0.001),
            "µs" => Some(1.0),
            "ms" => Some(1_000.0),
            "s" => Some(1_000_000.0),
            _ => None,
        };
        let time = factor.zip(digits.parse::<f64>().ok());
        let time = time.map(|(factor, value)| grouped(&format!("{:.0}", value * factor)));
        match time {
            Some(time) => source.extend(["us(", &time, ")"]),
            None => source.extend([&*grouped(digits), unit]),
        }
        rest = after;
    }
    source + rest
}

/// Groups digits by three.
fn grouped(digits: &str) -> String {
    let mut source = String::new();
    for (number, digit) in digits.chars().enumerate() {
        if number > 0 && (digits.len() - number).is_multiple_of(3) {
            source.push('_');
        }
        source.push(digit);
    }
    source
}
