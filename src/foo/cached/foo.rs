//! The cached form of a Foo.

use std::{
    borrow::Cow,
    hash::{Hash, Hasher},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use opentelemetry::trace::SpanContext;
use operator_runtime::{
    Cached, Field, Kind, Meta, Metadata, Primary, References, telemetry::trace,
};
use serde::{Deserialize, de::IgnoredAny};

use super::{deployment::Deployment, status::CachedStatus};
use crate::foo::api::{self, FooSpec, FooStatus};

/// The cached form of a Foo.
#[derive(Clone, Debug, PartialEq)]
pub struct Foo {
    /// `metadata.uid`: distinguishes this Foo from an earlier one of the same name.
    pub uid: Box<str>,
    /// `metadata.generation`: incremented by each change of the spec.
    pub generation: i64,
    /// Whether the Foo is being deleted.
    pub deleting: bool,
    /// The trace of the last change, from the annotation `foo-controller/traceparent`.
    pub trace: Option<Box<SpanContext>>,
    /// The spec, or its decoding error.
    pub spec: Result<FooSpec, Box<str>>,
    /// The stored status, or the default if it is missing or undecodable.
    status: CachedStatus,
}

#[derive(Default, Deserialize)]
struct FooAnnotations {
    #[serde(rename = "foo-controller/traceparent")]
    traceparent: Option<String>,
}

/// The JSON of a Foo.
#[derive(Deserialize)]
pub struct FooWire {
    metadata: Metadata<IgnoredAny, FooAnnotations>,
    #[serde(default)]
    spec: Field<FooSpec>,
    #[serde(default)]
    status: Field<FooStatus>,
}

impl Foo {
    /// Returns the Deployment that the status names.
    #[must_use]
    pub fn served_by(&self) -> Option<Cow<'_, str>> {
        self.status.deployment_name(deployment_name(&self.spec))
    }

    /// Returns the part of the status that Foos share. Its types, statuses, reasons and numbers of replicas are right. Names, times
    /// and generations are missing.
    #[must_use]
    pub fn shared_status(&self) -> &FooStatus {
        self.status.shape()
    }

    #[cfg(test)]
    pub(crate) fn set_status(&mut self, status: FooStatus) {
        self.status = CachedStatus::new(status, deployment_name(&self.spec));
    }

    #[cfg(test)]
    pub(crate) fn edit_status(&mut self, edit: impl FnOnce(&mut FooStatus)) {
        let mut status = self.status().into_owned();
        edit(&mut status);
        self.set_status(status);
    }
}

/// Returns the specified name; empty if the spec is invalid.
fn deployment_name<E>(spec: &Result<FooSpec, E>) -> &str {
    spec.as_ref().map_or("", |spec| &spec.deployment_name)
}

impl Cached for Foo {
    type Wire = FooWire;
    const KIND: Kind = Kind::custom(api::GROUP, api::VERSION, api::KIND, api::PLURAL);

    fn decode(mut wire: FooWire) -> (Meta, Self) {
        let mut status = wire.status.or_default();
        // The schema's default, -1, means that the field is absent.
        status.observed_generation = status.observed_generation.filter(|seen| *seen >= 0);
        let spec = wire.spec.into_result("spec");
        let spec: Result<FooSpec, _> = spec.map_err(String::into_boxed_str);
        let status = CachedStatus::new(status, deployment_name(&spec));
        let view = Self {
            uid: std::mem::take(&mut wire.metadata.uid),
            generation: std::mem::take(&mut wire.metadata.generation).or_default(),
            deleting: wire.metadata.deleting,
            trace: (wire.metadata.take_annotations())
                .traceparent
                .and_then(|traceparent| trace::parse(&traceparent))
                .map(Box::new),
            spec,
            status,
        };
        (wire.metadata.into_meta(), view)
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    /// The specified Deployment, and the Deployment that the status names, which serves until the specified one is available.
    fn references(&self, to: &mut References<'_>) {
        let wanted = self.spec.iter().map(|spec| spec.deployment_name.as_str());
        for name in wanted.chain(self.served_by().as_deref()) {
            to.sibling::<Deployment>(name);
        }
    }

    /// The spec is hashed with the generation, because an etcd restore reuses generations.
    fn content(&self, state: &mut impl Hasher) {
        (self.generation, &self.spec).hash(state);
    }
}

impl Primary for Foo {
    type Status = FooStatus;

    fn generation(&self) -> i64 {
        self.generation
    }

    fn is_deleting(&self) -> bool {
        self.deleting
    }

    fn status(&self) -> Cow<'_, FooStatus> {
        Cow::Owned(self.status.full(deployment_name(&self.spec)))
    }

    fn is_observed(&self) -> bool {
        self.status.observed_generation() == Some(self.generation)
    }

    fn condition(&self, type_: &str) -> Option<Cow<'_, Condition>> {
        let condition = self.status.condition(type_, deployment_name(&self.spec));
        condition.map(Cow::Owned)
    }

    fn noted(status: &mut FooStatus) -> Option<(&mut Vec<Condition>, &mut Option<String>)> {
        Some((
            &mut status.conditions,
            &mut status.last_handled_reconcile_at,
        ))
    }

    /// Hashes everything except the transition times of conditions. Destructured without `..`, so that each new field is
    /// hashed or ignored deliberately.
    fn says(status: &FooStatus, state: &mut impl Hasher) {
        let FooStatus {
            available_replicas,
            observed_generation,
            replicas,
            selector,
            deployment_name,
            conditions,
            last_handled_reconcile_at,
        } = status;
        (available_replicas, observed_generation, replicas).hash(state);
        (selector, deployment_name, last_handled_reconcile_at).hash(state);
        conditions.len().hash(state);
        for condition in conditions {
            let Condition {
                type_,
                status,
                reason,
                message,
                observed_generation,
                last_transition_time: _,
            } = condition;
            (type_, status, reason, message, observed_generation).hash(state);
        }
    }

    fn trace(&self) -> Option<&SpanContext> {
        self.trace.as_deref()
    }
}
