//! The plan of an object, and the summary of all plans.

use std::collections::BTreeMap;

use crate::{
    api::{
        difference::changes::{self, Change},
        key::Key,
    },
    config::sources::Settings,
    controller::dry_run::DryRun,
    reconcile::context::Step,
};

/// The plan of one reconciled object.
pub(super) struct Object<'a> {
    pub controller: &'static str,
    pub kind: &'static str,
    pub key: &'a Key,
    pub plan: DryRun,
}

/// The state of a reconciled object. The first that applies counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Failed,
    Blocked,
    Paused,
    Terminating,
    Changing,
    UpToDate,
}

impl DryRun {
    pub(crate) fn state(&self) -> State {
        match self {
            _ if self.problems.iter().any(|it| !it.is_settled) => State::Failed,
            _ if !self.problems.is_empty() => State::Blocked,
            _ if self.is_paused => State::Paused,
            _ if self.is_terminating => State::Terminating,
            _ if !self.steps.is_empty() => State::Changing,
            _ => State::UpToDate,
        }
    }
}

impl State {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Paused => "paused",
            Self::Terminating => "terminating",
            Self::Changing => "changing",
            Self::UpToDate => "upToDate",
        }
    }
}

/// Returns the changed fields of a step with a stored object. The store may not keep the fields of a stamp: those without an
/// old value are left out.
pub(super) fn changed(step: &Step) -> Vec<Change> {
    match step.verb {
        "patch" => {
            let mut all = changes::of_patch(step.of, &step.body, &step.actual);
            if !step.compared.is_null() {
                let compared = changes::of_patch(step.of, &step.compared, &step.actual);
                let is_compared = |path: &str| compared.iter().any(|it| it.path == path);
                all.retain(|it| it.old.is_some() || is_compared(&it.path));
            }
            all
        }
        "update" => changes::of_update(step.of, &step.body, &step.actual),
        _ => Vec::new(),
    }
}

/// Number of steps and objects of a plan.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// By verb.
    steps: BTreeMap<&'static str, usize>,
    objects: BTreeMap<State, usize>,
    pub limits: Vec<Limit>,
}

/// Number of changes whose concurrency is limited.
#[derive(Debug)]
pub(crate) struct Limit {
    pub field: &'static str,
    pub setting: &'static str,
    /// The value of the setting.
    pub value: Option<String>,
    pub patches: usize,
}

impl Summary {
    /// Whether a step is needed.
    pub(crate) fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Whether the plan lacks the steps of an object.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.objects(State::Failed) > 0
    }

    pub(crate) fn steps(&self, verb: &str) -> usize {
        self.steps.get(verb).copied().unwrap_or_default()
    }

    pub(crate) fn objects(&self, state: State) -> usize {
        self.objects.get(&state).copied().unwrap_or_default()
    }

    pub(crate) fn add(&mut self, plan: &DryRun, settings: &Settings) {
        *self.objects.entry(plan.state()).or_default() += 1;
        for step in &plan.steps {
            *self.steps.entry(step.verb).or_default() += 1;
            let Some((field, setting)) = step.limited else {
                continue;
            };
            let mut limits = self.limits.iter_mut();
            match limits.find(|it| (it.field, it.setting) == (field, setting)) {
                Some(limit) => limit.patches += 1,
                None => self.limits.push(Limit {
                    field,
                    setting,
                    value: settings.shown(setting),
                    patches: 1,
                }),
            }
        }
    }
}
