//! From a plan that shows a violation to the shortest that still does, and from that to the source of a regression case.

use super::{
    judge::Violation,
    plan::{Machine, Plan, Step, What},
};

/// How many runs may be spent on one plan.
const RUNS: usize = 400;

/// Takes steps away, in halves and then in ever smaller parts, as long as `check` finds the same invariant violated; and then
/// replicas, API servers and wrong clocks.
pub fn shrink(plan: &Plan, invariant: &str, check: &dyn Fn(&Plan) -> Vec<Violation>) -> Plan {
    let mut left = RUNS;
    let mut shows = |plan: &Plan| {
        left = left.saturating_sub(1);
        left > 0
            && check(plan)
                .iter()
                .any(|violation| violation.invariant == invariant)
    };
    let mut plan = plan.clone();
    let mut part = plan.steps.len() / 2;
    while part > 0 {
        let mut from = 0;
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
        part /= 2;
    }
    let simpler: [fn(&mut Plan); 4] = [
        |plan| {
            plan.replicas
                .iter_mut()
                .for_each(|machine| *machine = Machine::SOUND);
        },
        |plan| plan.fencing = false,
        |plan| plan.servers = 1,
        |plan| plan.settings.workers = 1,
    ];
    for change in simpler {
        let mut changed = plan.clone();
        change(&mut changed);
        if shows(&changed) {
            plan = changed;
        }
    }
    plan
}

/// What is left of them; the end of all faults stays.
fn without(steps: &[Step], range: std::ops::Range<usize>) -> Vec<Step> {
    let kept = steps.iter().enumerate();
    kept.filter(|(number, step)| !range.contains(number) || matches!(step.what, What::Heal))
        .map(|(_, step)| step.clone())
        .collect()
}

/// A case for `found.rs`: the plan, as Rust source.
pub fn source(plan: &Plan, name: &str, why: &str) -> String {
    let Plan {
        seed,
        settings,
        replicas,
        servers,
        fencing,
        steps,
        rest,
        end,
    } = plan;
    let mut lines = vec![
        format!("/// {why}"),
        format!("fn {name}() -> Plan {{"),
        "    Plan {".to_owned(),
        format!("        seed: {seed},"),
        format!("        settings: {},", rust(&format!("{settings:?}"))),
        format!("        replicas: vec!{replicas:?},"),
        format!("        servers: {servers},"),
        format!("        fencing: {fencing},"),
        "        steps: vec![".to_owned(),
    ];
    lines.extend(
        steps
            .iter()
            .map(|step| format!("            {},", rust(&format!("{step:?}")))),
    );
    lines.push("        ],".to_owned());
    lines.push(format!("        rest: {},", rust(&format!("{rest:?}"))));
    lines.push(format!("        end: {},", rust(&format!("{end:?}"))));
    lines.extend(["    }".to_owned(), "}".to_owned()]);
    lines.join("\n")
}

/// What `Debug` prints is Rust but for the times: `1.5s` is `us(1500000)`.
fn rust(debug: &str) -> String {
    let mut source = String::new();
    let mut rest = debug;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let is_in_a_name =
            rest[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '-');
        let number = &rest[start..];
        let digits = number
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(number.len());
        let unit = &number[digits..];
        let length = unit
            .find(|c: char| !c.is_alphabetic())
            .unwrap_or(unit.len());
        let factor = match &unit[..length] {
            "ns" => Some(0.001),
            "µs" => Some(1.0),
            "ms" => Some(1_000.0),
            "s" => Some(1_000_000.0),
            _ => None,
        };
        source.push_str(&rest[..start]);
        match factor
            .zip(number[..digits].parse::<f64>().ok())
            .filter(|_| !is_in_a_name)
        {
            Some((factor, value)) => source.extend([
                "us(".to_owned(),
                format!("{:.0}", value * factor),
                ")".to_owned(),
            ]),
            None => source.push_str(&number[..digits + length]),
        }
        rest = &number[digits + length..];
    }
    source + rest
}
