//! Events and their metadata.

use std::{borrow::Cow, collections::BTreeMap, sync::atomic::AtomicBool, time::Duration};

use k8s_openapi::jiff::Timestamp;
use opentelemetry::trace::SpanContext;

#[cfg(feature = "operator")]
use crate::api::failure::Failure;
use crate::{
    api::{key::Key, kind::Kind},
    config::{app::App, environment::Host},
    telemetry::trace,
};

/// Maximum number of waiting events; further events are dropped. Enough for the initial sync of 10,000 objects.
pub(super) const WAITING: usize = 10_000;

/// Longest note that the API server accepts, in bytes.
const LONGEST_NOTE: usize = 1024;

/// Longest name that the API server accepts, in bytes.
pub(super) const LONGEST_NAME: usize = 253;

/// Time limit of an event's retries. A restart or a short freeze of the API server loses no events.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_mins(1);

/// An event for users; `kubectl describe` shows it.
///
/// Events are written asynchronously, within a minute if the API server accepts them. They bypass the fence because they change
/// no reconciled object.
///
/// A repetition within six minutes extends a series. The last 1,500 events written are remembered for this.
///
/// An event is dropped and counted in these cases:
/// - the API server rejects its content, another event has its name, or its namespace is terminating;
/// - its write has failed for a minute;
/// - 10,000 events are waiting, or 5,000 of a namespace whose events fail.
///
/// On shutdown, waiting events get half of the remaining `shutdown_timeout`, at least 1 s. The number of unwritten events is
/// logged.
#[derive(Clone, Debug)]
pub struct Event {
    pub(super) type_: &'static str,
    pub(super) action: &'static str,
    pub(super) reason: &'static str,
    pub(super) note: Cow<'static, str>,
}

impl Event {
    /// Creates an event of type Normal, with a reason in CamelCase and a note for users. A note of more than 1,024 bytes is
    /// truncated.
    pub fn normal(reason: &'static str, note: impl Into<Cow<'static, str>>) -> Self {
        Self {
            type_: "Normal",
            action: "Reconcile",
            reason,
            note: cut(note.into()),
        }
    }

    /// Creates an event of type Warning.
    #[cfg(feature = "operator")]
    pub fn warning(reason: &'static str, note: impl Into<Cow<'static, str>>) -> Self {
        Self {
            type_: "Warning",
            ..Self::normal(reason, note)
        }
    }

    /// Creates a Warning from an error and its reason, which is `Error` by default.
    #[cfg(feature = "operator")]
    #[must_use]
    pub fn failed(error: &impl Failure) -> Self {
        Self::warning(error.reason().unwrap_or("Error"), error.to_string())
    }

    #[cfg(feature = "operator")]
    pub(crate) fn is_warning(&self) -> bool {
        self.type_ == "Warning"
    }

    /// Sets the action, which is `Reconcile` by default.
    pub(crate) fn of(self, action: &'static str) -> Self {
        Self { action, ..self }
    }
}

/// Truncates a note before it is queued, to limit the memory of waiting events.
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

/// An event that waits to be written.
pub(super) struct Queued {
    pub kind: &'static Kind,
    pub key: Key,
    pub uid: Box<str>,
    pub event: Event,
    /// Time of occurrence. It may be long before the write.
    pub time: Timestamp,
    /// Span of the reconcile that sent the event, if it is exported.
    pub trace: Option<SpanContext>,
    /// Whether an attempt may have created the event.
    pub is_sent: AtomicBool,
}

impl Queued {
    /// Returns the namespace of the object, or `default` for a cluster-scoped object. The API server accepts an event about a
    /// cluster-scoped object there and in `kube-system` only. client-go's recorder uses `default` as well (`makeEvent`).
    pub(super) fn namespace(&self) -> &str {
        self.key.namespace_if_any().unwrap_or("default")
    }

    /// Returns an annotation that names the trace.
    pub(super) fn annotations(&self, app: &App) -> Option<BTreeMap<String, String>> {
        let trace = trace::annotation(self.trace.as_ref()?);
        Some(BTreeMap::from([(app.trace_annotation(), trace)]))
    }
}

/// Reporter of the events, and the default kind of their objects.
#[derive(Clone, Debug)]
pub(crate) struct EventSource {
    pub app: &'static App,
    /// Name of the reporting controller.
    pub reporter: &'static str,
    /// Name of the replica.
    pub instance: String,
    pub kind: &'static Kind,
    pub host: Host,
}
