//! Values with their paths, and the errors at them (`k8s.io/apimachinery/pkg/util/validation/field`).

use std::ops::RangeInclusive;

use serde_json::Value;

use super::super::{Release, metadata, request::Unknown, schema::go, status::Cause};

/// A value of an object with its path.
#[derive(Clone)]
pub struct At<'a> {
    pub path: String,
    pub value: &'a Value,
}

impl<'a> At<'a> {
    pub fn new(path: &str, value: &'a Value) -> Self {
        let path = path.to_owned();
        Self { path, value }
    }

    /// Returns a field, which may be absent.
    pub fn child(&self, field: &str) -> Self {
        Self {
            path: format!("{}.{field}", self.path),
            value: &self.value[field],
        }
    }

    /// Returns a field that is there.
    pub fn get(&self, field: &str) -> Option<Self> {
        Some(self.child(field)).filter(Self::is_there)
    }

    /// Returns the elements of a list in a field.
    pub fn list(&self, field: &str) -> impl Iterator<Item = Self> + use<'a> {
        let Self { path, value } = self.child(field);
        let items = value.as_array().into_iter().flatten().enumerate();
        items.map(move |(at, value)| Self {
            path: format!("{path}[{at}]"),
            value,
        })
    }

    /// Returns the names and values of a map in a field. The paths have the form `limits[cpu]`.
    pub fn map(&self, field: &str) -> impl Iterator<Item = (&'a str, Self)> + use<'a> {
        let Self { path, value } = self.child(field);
        let items = value.as_object().into_iter().flatten();
        items.map(move |(name, value)| {
            let path = format!("{path}[{name}]");
            (name.as_str(), Self { path, value })
        })
    }

    pub fn is_there(&self) -> bool {
        !self.value.is_null()
    }

    /// Returns whether this is an absent or empty text or list.
    pub fn is_empty(&self) -> bool {
        match self.value {
            Value::String(text) => text.is_empty(),
            Value::Array(all) => all.is_empty(),
            value => value.is_null(),
        }
    }

    pub fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_default()
    }

    pub fn number(&self) -> i64 {
        self.value.as_i64().unwrap_or_default()
    }
}

/// Errors of a template.
pub struct Errors {
    pub release: Release,
    pub causes: Vec<Cause>,
    /// The first value whose errors are not imitated.
    pub unknown: Option<Unknown>,
}

impl Errors {
    pub fn new(release: Release) -> Self {
        Self {
            release,
            causes: Vec::new(),
            unknown: None,
        }
    }

    /// Notes a value that the API server may reject with an error that is not imitated.
    pub fn unknown(&mut self, at: &At<'_>) {
        let unknown = || Unknown(format!("{}={}", at.path, at.value));
        self.unknown.get_or_insert_with(unknown);
    }

    /// Notes a value that is not modelled, unless it is `legal`.
    pub fn legal(&mut self, legal: bool, at: &At<'_>) {
        if !legal {
            self.unknown(at);
        }
    }

    /// Notes a field that the API server has only since this release.
    pub fn since(&mut self, release: Release, at: &At<'_>) {
        self.legal(self.release >= release, at);
    }

    pub fn invalid(&mut self, at: &At<'_>, why: &str) {
        let shown = go::shown(at.value, Release::default());
        self.causes.push(Cause::invalid(&at.path, shown, why));
    }

    /// Notes another value as invalid.
    pub fn invalid_as(&mut self, path: &str, value: &str, why: &str) {
        let shown = go::quoted(value);
        self.causes.push(Cause::invalid(path, shown, why));
    }

    pub fn required(&mut self, at: &At<'_>, why: &str) {
        self.causes.push(Cause::required(&at.path, why));
    }

    /// Requires texts or lists that are not empty.
    pub fn require(&mut self, of: &At<'_>, fields: &[&str]) {
        for field in fields {
            let at = of.child(field);
            if at.is_empty() {
                self.required(&at, "");
            }
        }
    }

    pub fn forbidden(&mut self, path: &str, why: &str) {
        self.causes.push(Cause::forbidden(path, why));
    }

    pub fn duplicate(&mut self, path: &str, value: &str) {
        self.causes.push(Cause::duplicate(path, value));
    }

    pub fn not_found(&mut self, at: &At<'_>, more: &str) {
        let shown = go::shown(at.value, Release::default());
        let colon = if more.is_empty() { "" } else { ": " };
        self.causes.push(Cause {
            field: at.path.clone(),
            reason: "FieldValueNotFound",
            message: format!("Not found: {shown}{colon}{more}"),
        });
    }

    /// Allows only these texts.
    pub fn supported(&mut self, at: &At<'_>, texts: &[&str]) {
        if !texts.contains(&at.text()) {
            let shown = go::quoted(at.text());
            self.causes
                .push(Cause::unsupported(&at.path, &shown, texts));
        }
    }

    pub fn range(&mut self, at: &At<'_>, range: RangeInclusive<i64>) {
        if at.is_there() && !range.contains(&at.number()) {
            let (low, high) = range.into_inner();
            self.invalid(at, &format!("must be between {low} and {high}, inclusive"));
        }
    }

    pub fn nonnegative(&mut self, at: &At<'_>) {
        if at.number() < 0 {
            self.invalid(at, "must be greater than or equal to 0");
        }
    }

    pub fn positive(&mut self, at: &At<'_>) {
        if at.number() <= 0 {
            self.invalid_number(at, "must be greater than zero");
        }
    }

    /// Like `invalid`, with zero for an absent number.
    pub fn invalid_number(&mut self, at: &At<'_>, why: &str) {
        let cause = Cause::invalid(&at.path, at.number(), why);
        self.causes.push(cause);
    }

    /// Requires a DNS label, if there is a text.
    pub fn label(&mut self, at: &At<'_>) {
        self.causes
            .extend(metadata::check_label(&at.path, at.text()));
    }

    /// Requires a DNS subdomain.
    pub fn subdomain(&mut self, at: &At<'_>) {
        self.causes
            .extend(metadata::check_subdomain(&at.path, at.text()));
    }

    pub fn qualified(&mut self, at: &At<'_>) {
        self.causes
            .extend(metadata::check_qualified(&at.path, at.text()));
    }
}
