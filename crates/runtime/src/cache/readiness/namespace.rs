//! One scope: whether it is in sync and served, and what it cannot be served for.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use k8s_openapi::api::authorization::v1::ResourceAttributes;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    api::{key::Key, kind::Kind},
    telemetry::log::log_once::Causes,
};

/// What a controller needs in each scope to serve it.
#[derive(Clone, Debug)]
pub struct Needs {
    /// The kind that is reconciled.
    pub primary: Kind,
    /// All kinds that are watched, that one among them.
    pub watched: Vec<Kind>,
    /// What is written, beside the watches.
    pub rights: Vec<Right>,
}

/// To do this to objects of a kind, or to a subresource of them where that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// `create`, `patch`, …
    pub verb: &'static str,
    /// Of what.
    pub kind: Kind,
    /// `status`, or empty.
    pub subresource: &'static str,
}

impl Right {
    /// What is reviewed of it, in a namespace or in all of them.
    pub(crate) fn attributes(&self, namespace: Option<&str>) -> ResourceAttributes {
        let subresource = Some(self.subresource.to_owned());
        ResourceAttributes {
            namespace: namespace.map(str::to_owned),
            verb: Some(self.verb.to_owned()),
            group: Some(self.kind.group.to_owned()),
            resource: Some(self.kind.plural.to_owned()),
            subresource: subresource.filter(|name| !name.is_empty()),
            ..ResourceAttributes::default()
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        let (verb, plural) = (self.verb, self.kind.plural);
        write!(f, "{verb} {plural}{slash}{}", self.subresource)
    }
}

/// What is known of all rights that are needed in a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    Unknown,
    Sufficient,
    Missing(Problem),
}

/// Why a scope is not served, as the metric's label has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The initial sync has not ended.
    Syncing,
    /// 403, or a right is missing.
    Forbidden,
    /// 401.
    Unauthorized,
    /// 404: the CRD is not installed.
    NotFound,
    /// Anything else: no answer, or another error.
    Failing,
}

impl Reason {
    /// What an error of the API server's of this code is.
    pub fn of(code: Option<u16>) -> Self {
        match code {
            Some(401) => Self::Unauthorized,
            Some(403) => Self::Forbidden,
            Some(404) => Self::NotFound,
            _ => Self::Failing,
        }
    }

    /// As the metric has it.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Syncing => "syncing",
            Self::Forbidden => "forbidden",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "missing",
            Self::Failing => "failing",
        }
    }
}

/// What a scope cannot be served for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub reason: Reason,
    pub text: String,
}

/// A namespace, or all of them.
pub(super) struct Scope {
    pub namespace: Option<String>,
    /// By their places in [`Needs::watched`].
    pub informers: Vec<InformerState>,
    pub rights: Rights,
    /// The log of missing rights.
    pub lacking: Causes,
    pub checked: Option<Instant>,
    pub was_in_sync: bool,
    pub served: bool,
    pub was_served: bool,
    /// Since when there has been a problem.
    pub since: Option<Instant>,
    /// The longest time that the API server has asked for meanwhile: it is not held against the scope.
    pub asked: Duration,
}

pub(super) struct InformerState {
    pub synced: bool,
    pub failure: Option<Problem>,
    /// When the watch last heard from the API server, or began to.
    pub heard: Instant,
    /// The resourceVersion that it has come to; empty before the end of the first list.
    pub version: String,
}

impl InformerState {
    fn new() -> Self {
        Self {
            synced: false,
            failure: None,
            heard: Instant::now(),
            version: String::new(),
        }
    }
}

impl Scope {
    /// One of which nothing is known yet, of this many watched kinds.
    pub fn new(namespace: Option<String>, informers: usize) -> Self {
        Self {
            namespace,
            informers: (0..informers).map(|_| InformerState::new()).collect(),
            rights: Rights::Unknown,
            lacking: Causes::default(),
            checked: None,
            was_in_sync: false,
            served: false,
            was_served: false,
            since: None,
            asked: Duration::ZERO,
        }
    }

    /// As metrics have it.
    pub fn label(&self) -> String {
        self.namespace.clone().unwrap_or_else(|| "*".to_owned())
    }

    pub fn covers(&self, key: &Key) -> bool {
        let namespace = self.namespace.as_deref();
        namespace.is_none_or(|namespace| namespace == key.namespace())
    }

    pub fn is_in_sync(&self) -> bool {
        self.informers.iter().all(|informer| informer.synced) && self.rights != Rights::Unknown
    }

    pub fn problem(&self, needs: &Needs) -> Option<Problem> {
        let mut failures = self.informers.iter().filter_map(|i| i.failure.as_ref());
        if let Some(failure) = failures.next() {
            return Some(failure.clone());
        }
        if let Rights::Missing(problem) = &self.rights {
            return Some(problem.clone());
        }
        if self.is_in_sync() {
            return None;
        }
        let unsynced = needs.watched.iter().zip(&self.informers);
        let unsynced = unsynced.filter(|(_, informer)| !informer.synced);
        let unsynced: Vec<_> = unsynced.map(|(kind, _)| kind.plural).collect();
        let what = if unsynced.is_empty() {
            "rights".to_owned()
        } else {
            unsynced.join(", ")
        };
        let mut text = format!("not in sync yet: {what}");
        if let Some(namespace) = &self.namespace {
            let _ = write!(text, " in namespace {namespace}");
        }
        Some(Problem {
            reason: Reason::Syncing,
            text,
        })
    }

    /// Whether this is served at `now`; says when it is to be given up.
    pub fn judge(&mut self, needs: &Needs, now: Instant, grace: Duration) -> Option<Instant> {
        let kind = needs.primary.kind;
        let Some(problem) = self.problem(needs) else {
            if !self.served && self.was_served {
                info!(namespace = self.namespace, "{kind}s are served again");
            }
            (self.served, self.was_served) = (true, true);
            (self.since, self.asked) = (None, Duration::ZERO);
            return None;
        };
        let end = *self.since.get_or_insert(now) + self.asked + grace;
        if !self.served {
            return None;
        }
        if now < end {
            return Some(end);
        }
        self.served = false;
        warn!(
            namespace = self.namespace,
            "{kind}s have not been served for {grace:?}: {}", problem.text
        );
        None
    }
}

/// A scope, in words.
pub struct Place<'a>(pub Option<&'a str>);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(namespace) => write!(f, "namespace {namespace}"),
            None => f.write_str("all namespaces"),
        }
    }
}
