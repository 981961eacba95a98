//! The plan as text: a block for each object with a step or a problem.

use std::io::{self, Write};

use serde_json::Value;

use super::planned::{Object, State, Summary, changed};
use crate::{
    api::{difference::changes::Change, failure::is_hidden},
    reconcile::context::Step,
};

/// Writes the block of an object. An object without a step and a problem has none.
pub(super) fn object(out: &mut impl Write, object: &Object<'_>) -> io::Result<()> {
    let Object {
        kind, key, plan, ..
    } = object;
    if plan.steps.is_empty() && plan.problems.is_empty() {
        return Ok(());
    }
    let held = match (plan.is_paused, plan.is_terminating) {
        (true, _) => " (paused)",
        (_, true) => " (terminating)",
        _ => "",
    };
    line(out, "", &format!("{kind} {key}{held}"))?;
    for one in &plan.steps {
        step(out, object, one)?;
    }
    for problem in &plan.problems {
        let word = if problem.is_settled {
            "blocked"
        } else {
            "error"
        };
        line(out, "  ", &format!("{word}: {}", problem.text))?;
    }
    writeln!(out)
}

fn step(out: &mut impl Write, object: &Object<'_>, step: &Step) -> io::Result<()> {
    let Step {
        verb, kind, key, ..
    } = step;
    match *verb {
        "create" => {
            line(out, "  ", &format!("create {kind} {key}"))?;
            let manifest = serde_saphyr::to_string(&step.redacted());
            let manifest = manifest.unwrap_or_else(|error| format!("(not shown: {error})"));
            for text in manifest.lines() {
                line(out, "    ", text)?;
            }
        }
        "patch" | "update" => {
            let is_own = (*kind, key) == (object.kind, object.key) && *verb == "update";
            let words = if is_own {
                "update the status".to_owned()
            } else {
                format!("{verb} {kind} {key}")
            };
            line(out, "  ", &words)?;
            for change in changed(step) {
                field(out, &change)?;
            }
        }
        "outside" => {
            let name = step.body.as_str().unwrap_or_default();
            line(
                out,
                "  ",
                &format!("act outside the cluster (finalizer {name})"),
            )?;
        }
        "get" => line(
            out,
            "  ",
            &format!("read {kind} {key}, before further steps"),
        )?,
        verb => line(out, "  ", &format!("{verb} {kind} {key}"))?,
    }
    Ok(())
}

fn field(out: &mut impl Write, Change { path, old, new }: &Change) -> io::Result<()> {
    match (old, new) {
        (Some(Value::String(old)), Some(Value::String(new)))
            if old.contains('\n') || new.contains('\n') =>
        {
            line(out, "    ", &format!("~ {path}:"))?;
            for (sign, text) in lines(old, new) {
                line(out, "        ", &format!("{sign} {text}"))?;
            }
            Ok(())
        }
        (Some(old), Some(new)) => line(out, "    ", &format!("~ {path}: {old} -> {new}")),
        (None, Some(new)) => line(out, "    ", &format!("+ {path}: {new}")),
        (old, None) => {
            let old = old.as_ref().unwrap_or(&Value::Null);
            line(out, "    ", &format!("- {path}: {old}"))
        }
    }
}

/// Returns the lines between the common start and the common end of two texts: old lines with `-`, new lines with `+`.
fn lines<'a>(old: &'a str, new: &'a str) -> Vec<(char, &'a str)> {
    let (old, new): (Vec<_>, Vec<_>) = (old.split('\n').collect(), new.split('\n').collect());
    let same = |(one, other): &(&&str, &&str)| one == other;
    let start = old.iter().zip(&new).take_while(same).count();
    let (old, new) = (&old[start..], &new[start..]);
    let end = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(same)
        .count();
    let old = old[..old.len() - end].iter().map(|text| ('-', *text));
    let new = new[..new.len() - end].iter().map(|text| ('+', *text));
    old.chain(new).collect()
}

/// Writes a line. Texts of the API server cannot break it, or control the terminal.
fn line(out: &mut impl Write, indent: &str, text: &str) -> io::Result<()> {
    writeln!(out, "{indent}{}", text.replace(is_hidden, " "))
}

/// Writes the last lines.
pub(super) fn summary(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let of_steps = [
        ("update", "to update (status)"),
        ("outside", "outside the cluster"),
        ("get", "to read first"),
    ];
    let of_objects = [
        (State::Paused, "paused"),
        (State::Terminating, "terminating"),
        (State::Blocked, "blocked"),
        (State::Failed, "failed"),
    ];
    write!(
        out,
        "Plan: {} to create, {} to patch, {} to delete",
        summary.steps("create"),
        summary.steps("patch"),
        summary.steps("delete"),
    )?;
    optional(
        out,
        of_steps.map(|(verb, words)| (summary.steps(verb), words)),
    )?;
    write!(
        out,
        "Objects: {} with changes, {} up to date",
        summary.objects(State::Changing),
        summary.objects(State::UpToDate),
    )?;
    optional(
        out,
        of_objects.map(|(state, words)| (summary.objects(state), words)),
    )?;
    for limit in &summary.limits {
        let value = limit.value.as_deref().unwrap_or("hidden");
        writeln!(
            out,
            "Changes of {}: {}; {} = {value} limits how many of them run at the same time",
            limit.field, limit.patches, limit.setting
        )?;
    }
    if summary.has_steps() {
        writeln!(
            out,
            "These are the first requests. The plan contains neither the statuses after them nor the reactions of other controllers"
        )?;
    }
    Ok(())
}

/// Writes the numbers above zero, and ends the line.
fn optional<const N: usize>(out: &mut impl Write, counts: [(usize, &str); N]) -> io::Result<()> {
    for (count, words) in counts.iter().filter(|(count, _)| *count > 0) {
        write!(out, ", {count} {words}")?;
    }
    writeln!(out)
}
