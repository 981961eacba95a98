//! What there is to report, about what, and by whom.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use opentelemetry::trace::SpanContext;

use crate::{
    api::{failure::Failure, key::Key, kind::Kind},
    config::{app::App, environment::Host},
    telemetry::trace,
};

/// How many events wait to be written; past that they are dropped. Enough for a first sync of 10,000 objects.
pub(super) const WAITING: usize = 10_000;

/// The longest note that the API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// The longest name that it takes.
pub(super) const LONGEST_NAME: usize = 253;

/// How long an event is tried to be written: an API server that is frozen or restarted loses none.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_mins(1);

/// What there is to report to people: `kubectl describe` shows it.
///
/// It costs no object any time: it is written beside the work, within a minute if it can be, and past the fence, since it
/// changes nothing that is reconciled. The same event again within six minutes is one more of a series, of the 1,500 that were
/// written last. It is dropped and counted where the API server refuses it for what it says, or since its namespace is going;
/// and where 10,000 wait. A stop has half of what is left of `shutdown_timeout` for those that wait, 1 s at least, and logs
/// how many are not written.
#[derive(Clone, Debug)]
pub struct Event {
    pub(super) type_: &'static str,
    pub(super) action: &'static str,
    pub(super) reason: &'static str,
    pub(super) note: Cow<'static, str>,
}

impl Event {
    /// One of type Normal, with its reason in CamelCase and a note for people.
    pub fn normal(reason: &'static str, note: impl Into<Cow<'static, str>>) -> Self {
        Self {
            type_: "Normal",
            action: "Reconcile",
            reason,
            note: cut(note.into()),
        }
    }

    /// One of type Warning.
    pub fn warning(reason: &'static str, note: impl Into<Cow<'static, str>>) -> Self {
        Self {
            type_: "Warning",
            ..Self::normal(reason, note)
        }
    }

    /// The warning of an error that has a reason.
    #[must_use]
    pub fn failed(error: &impl Failure) -> Self {
        Self::warning(error.reason().unwrap_or("Error"), error.to_string())
    }

    /// Whether something is wrong.
    pub(crate) fn is_warning(&self) -> bool {
        self.type_ == "Warning"
    }

    /// The same, of another action than a reconcile.
    pub(crate) fn of(self, action: &'static str) -> Self {
        Self { action, ..self }
    }
}

/// As much of it as fits into a note: ten thousand of them may wait.
pub(super) fn cut(message: Cow<'static, str>) -> Cow<'static, str> {
    const MORE: char = '…';
    if message.len() <= LONGEST_NOTE {
        return message;
    }
    let end = message.floor_char_boundary(LONGEST_NOTE - MORE.len_utf8());
    let mut short = message[..end].to_owned();
    short.push(MORE);
    short.into()
}

/// An event on its way.
pub(super) struct Queued {
    pub key: Key,
    pub uid: Box<str>,
    pub event: Event,
    /// When it happened, which may be long before it is written.
    pub time: Timestamp,
    /// The reconcile that it is from, if that is traced.
    pub trace: Option<SpanContext>,
}

impl Queued {
    /// The trace that it is from.
    pub(super) fn annotations(&self, app: &App) -> Option<BTreeMap<String, String>> {
        let trace = trace::annotation(self.trace.as_ref()?);
        Some(BTreeMap::from([(app.trace_annotation(), trace)]))
    }
}

/// Who reports, and about which kind.
#[derive(Clone, Debug)]
pub struct About {
    pub app: &'static App,
    /// What is named as the reporting controller.
    pub reporter: &'static str,
    /// The replica's name.
    pub instance: String,
    pub kind: Kind,
    pub host: Host,
}
