//! The status of a Foo in the cache.
//!
//! A status takes 0.6 kB, as long as it is not shared. But without the names, the times and the generations there are only a few
//! of them, which Foos share.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use super::pool::Pool;
use crate::foo::api::FooStatus;

/// Stands for the name of the specified Deployment.
const NAME: char = '\u{1}';

static SHAPES: Pool<FooStatus> = Pool::new();

/// A status whose parts are shared. `name` in its methods is the name of the Deployment that the Foo specifies.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedStatus {
    /// The status without times and the token, with zero for each generation, and with [`NAME`] in its texts.
    shape: Arc<FooStatus>,
    /// `lastTransitionTime` of the first condition.
    since: Timestamp,
    /// The first `observedGeneration`: of the status, or else of a condition.
    generation: i64,
    rare: Option<Box<Rare>>,
}

/// Parts that most statuses do not have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rare {
    /// Whether the texts contain [`NAME`] themselves.
    is_verbatim: bool,
    /// The selector, if it does not contain the name: a Foo and its Deployment may have different names.
    selector: Option<String>,
    /// `lastTransitionTime` of each condition, unless all are the same.
    times: Vec<Timestamp>,
    /// Each `observedGeneration`, unless all are the same.
    generations: Vec<i64>,
    /// `lastHandledReconcileAt`.
    token: Option<String>,
}

impl CachedStatus {
    /// Returns the cached form of a status.
    #[must_use]
    pub fn new(mut status: FooStatus, name: &str) -> Self {
        let is_verbatim = name.is_empty() || texts(&mut status).any(|text| text.contains(NAME));
        let (since, times) = take(times_of(&mut status));
        let (generation, generations) = take(generations_of(&mut status));
        if !is_verbatim {
            for text in texts(&mut status) {
                *text = text.replace(name, NAME.encode_utf8(&mut [0; 4]));
            }
        }
        let selector = status.selector.take_if(|it| !it.contains(NAME));
        let token = status.last_handled_reconcile_at.take();
        status.conditions.shrink_to_fit();
        let shape = SHAPES.share(Arc::new(status));
        let rare = Rare {
            is_verbatim,
            selector,
            times,
            generations,
            token,
        };
        Self {
            shape,
            since,
            generation,
            rare: (rare != Rare::default()).then(|| rare.into()),
        }
    }

    /// Returns the status.
    #[must_use]
    pub fn full(&self, name: &str) -> FooStatus {
        let mut status = (*self.shape).clone();
        for text in texts(&mut status) {
            if let Cow::Owned(named) = self.named(text, name) {
                *text = named;
            }
        }
        times_of(&mut status).for_each(|time| *time = self.since);
        generations_of(&mut status).for_each(|generation| *generation = self.generation);
        if let Some(rare) = &self.rare {
            status.selector = status.selector.or_else(|| rare.selector.clone());
            status.last_handled_reconcile_at.clone_from(&rare.token);
            for (time, own) in times_of(&mut status).zip(&rare.times) {
                *time = *own;
            }
            for (generation, own) in generations_of(&mut status).zip(&rare.generations) {
                *generation = *own;
            }
        }
        status
    }

    /// Returns the shared part: see [`Foo::shared_status`](super::foo::Foo::shared_status).
    #[must_use]
    pub fn shape(&self) -> &FooStatus {
        &self.shape
    }

    /// Returns `observedGeneration`.
    #[must_use]
    pub fn observed_generation(&self) -> Option<i64> {
        self.shape.observed_generation.map(|_| self.generation)
    }

    /// Returns a condition.
    #[must_use]
    pub fn condition(&self, type_: &str, name: &str) -> Option<Condition> {
        let at = (self.shape.conditions.iter()).position(|it| it.type_ == type_)?;
        Some(self.full(name).conditions.swap_remove(at))
    }

    /// Returns `deploymentName`.
    #[must_use]
    pub fn deployment_name(&self, name: &str) -> Option<Cow<'_, str>> {
        let text = self.shape.deployment_name.as_deref()?;
        Some(self.named(text, name))
    }

    fn named<'a>(&self, text: &'a str, name: &str) -> Cow<'a, str> {
        let is_verbatim = self.rare.as_ref().is_some_and(|rare| rare.is_verbatim);
        if is_verbatim || !text.contains(NAME) {
            return text.into();
        }
        text.replace(NAME, name).into()
    }
}

/// The texts of a status that contain names.
fn texts(status: &mut FooStatus) -> impl Iterator<Item = &mut String> {
    let messages = status.conditions.iter_mut().map(|it| &mut it.message);
    messages
        .chain(&mut status.selector)
        .chain(&mut status.deployment_name)
}

/// The times of a status.
fn times_of(status: &mut FooStatus) -> impl Iterator<Item = &mut Timestamp> {
    let conditions = status.conditions.iter_mut();
    conditions.map(|it| &mut it.last_transition_time.0)
}

/// The generations of a status: its own is the first.
fn generations_of(status: &mut FooStatus) -> impl Iterator<Item = &mut i64> {
    let conditions = status.conditions.iter_mut();
    (status.observed_generation.iter_mut())
        .chain(conditions.filter_map(|it| it.observed_generation.as_mut()))
}

/// Leaves the default, and returns the first value, and all values unless they are the same.
fn take<'a, T: Copy + Default + PartialEq + 'a>(
    values: impl Iterator<Item = &'a mut T>,
) -> (T, Vec<T>) {
    let mut taken: Vec<T> = values.map(std::mem::take).collect();
    let first = taken.first().copied().unwrap_or_default();
    if taken.iter().all(|it| *it == first) {
        taken = Vec::new();
    }
    (first, taken)
}
