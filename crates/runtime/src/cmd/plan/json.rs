//! The plan as JSON, one object per line.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use super::planned::{Object, State, Summary, changed};
use crate::{api::difference::changes::Change, reconcile::context::Step};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    controller: &'a str,
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    state: &'a str,
    steps: Vec<StepLine<'a>>,
    problems: Vec<&'a str>,
}

#[derive(Serialize)]
struct StepLine<'a> {
    verb: &'a str,
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Value::is_null")]
    body: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<Change>,
}

impl<'a> StepLine<'a> {
    fn of(step: &'a Step) -> Self {
        Self {
            verb: step.verb,
            kind: step.kind,
            namespace: step.key.namespace(),
            name: step.key.name(),
            body: step.redacted(),
            changes: changed(step),
        }
    }
}

#[derive(Serialize)]
struct Last<'a> {
    summary: SummaryLine<'a>,
}

#[derive(Serialize)]
struct SummaryLine<'a> {
    steps: Steps,
    objects: Objects,
    limits: Vec<LimitLine<'a>>,
}

#[derive(Serialize)]
struct Steps {
    create: usize,
    patch: usize,
    delete: usize,
    update: usize,
    outside: usize,
    get: usize,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Objects {
    changing: usize,
    up_to_date: usize,
    paused: usize,
    terminating: usize,
    blocked: usize,
    failed: usize,
}

#[derive(Serialize)]
struct LimitLine<'a> {
    field: &'a str,
    setting: &'a str,
    value: Option<&'a str>,
    patches: usize,
}

/// Writes the line of an object, unless the object is up to date.
pub(super) fn object(out: &mut impl Write, object: &Object<'_>) -> io::Result<()> {
    let (plan, key) = (&object.plan, object.key);
    let state = plan.state();
    if state == State::UpToDate {
        return Ok(());
    }
    let line = Line {
        controller: object.controller,
        kind: object.kind,
        namespace: key.namespace(),
        name: key.name(),
        state: state.name(),
        steps: plan.steps.iter().map(StepLine::of).collect(),
        problems: plan.problems.iter().map(|it| &*it.text).collect(),
    };
    write(out, &line)
}

/// Writes the last line.
pub(super) fn summary(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    let (steps, objects) = (|verb| summary.steps(verb), |state| summary.objects(state));
    let limits = summary.limits.iter().map(|it| LimitLine {
        field: it.field,
        setting: it.setting,
        value: it.value.as_deref(),
        patches: it.patches,
    });
    let summary = SummaryLine {
        steps: Steps {
            create: steps("create"),
            patch: steps("patch"),
            delete: steps("delete"),
            update: steps("update"),
            outside: steps("outside"),
            get: steps("get"),
        },
        objects: Objects {
            changing: objects(State::Changing),
            up_to_date: objects(State::UpToDate),
            paused: objects(State::Paused),
            terminating: objects(State::Terminating),
            blocked: objects(State::Blocked),
            failed: objects(State::Failed),
        },
        limits: limits.collect(),
    };
    write(out, &Last { summary })
}

fn write(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    writeln!(out)
}
