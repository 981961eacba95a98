//! The status of a Foo in the cache.
//!
//! A status takes half a kilobyte, more than the rest of a Foo and its Deployment. But without the names and the times there are
//! only a few of them, which Foos share.

use std::{borrow::Cow, hash::Hash, sync::Arc};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use operator_runtime::Primary;

use super::{foo::Foo, pool::Pool};
use crate::foo::api::FooStatus;

/// Stands for the name of the specified Deployment.
const NAME: char = '\u{1}';

static SHAPES: Pool<FooStatus> = Pool::new();

/// A status whose parts are shared. The `name` of its methods is always that of the Deployment which the Foo specifies.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedStatus {
    /// The status without times, and with [`NAME`] in its texts.
    shape: Arc<FooStatus>,
    /// `lastTransitionTime` of the first condition.
    since: Timestamp,
    rare: Option<Box<Rare>>,
}

/// What most statuses do not have.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rare {
    /// Whether the texts contain [`NAME`] themselves.
    is_verbatim: bool,
    /// The selector, if it does not contain the name: a Foo and its Deployment may have different names.
    selector: Option<String>,
    /// `lastTransitionTime` of each condition, unless all are the same.
    times: Vec<Timestamp>,
}

impl CachedStatus {
    /// Returns the cached form of a status.
    #[must_use]
    pub fn new(mut status: FooStatus, name: &str) -> Self {
        let is_verbatim = name.is_empty() || texts(&mut status).any(|text| text.contains(NAME));
        let times = status.conditions.iter_mut().map(|condition| {
            std::mem::replace(
                &mut condition.last_transition_time,
                Time(Timestamp::default()),
            )
        });
        let mut times: Vec<_> = times.map(|Time(time)| time).collect();
        let since = times.first().copied().unwrap_or_default();
        if times.iter().all(|time| *time == since) {
            times.clear();
        }
        if !is_verbatim {
            for text in texts(&mut status) {
                *text = text.replace(name, NAME.encode_utf8(&mut [0; 4]));
            }
        }
        let selector = status.selector.take_if(|it| !it.contains(NAME));
        let shape = Arc::new(status);
        let shape = SHAPES.share(Arc::clone(&shape), &Said(&shape));
        let rare = Rare {
            is_verbatim,
            selector,
            times,
        };
        Self {
            shape,
            since,
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
        for condition in &mut status.conditions {
            condition.last_transition_time = Time(self.since);
        }
        if let Some(rare) = &self.rare {
            status.selector = status.selector.or_else(|| rare.selector.clone());
            for (condition, time) in status.conditions.iter_mut().zip(&rare.times) {
                condition.last_transition_time = Time(*time);
            }
        }
        status
    }

    /// Returns the status with other times, texts and selector: what is left has the values of the status.
    #[must_use]
    pub fn shape(&self) -> &FooStatus {
        &self.shape
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

struct Said<'a>(&'a FooStatus);

impl Hash for Said<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Foo::says(self.0, state);
    }
}
