//! Selection of the objects of a resource type that a program watches.

use std::{collections::BTreeSet, fmt};

/// Selection of the objects of a resource type; see [`Builder::select`](crate::Builder::select). The default selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Select {
    labels: Option<String>,
    fields: Option<String>,
    referenced_only: bool,
}

impl Select {
    /// Selects the objects with these labels, such as `app=web,tier in (a, b),!old`: the syntax of `kubectl --selector`. The
    /// API server filters them.
    #[must_use]
    pub fn labels(selector: impl Into<String>) -> Self {
        Self {
            labels: Some(selector.into()),
            ..Self::default()
        }
    }

    /// Selects the objects with these fields, such as `type!=helm.sh/release.v1`: the syntax of `kubectl --field-selector`. The
    /// API server filters them. It supports few fields: for each resource type `metadata.name` and `metadata.namespace`, and
    /// for example `type` of a Secret. Another field fails the watch with code 400.
    #[must_use]
    pub fn fields(selector: impl Into<String>) -> Self {
        Self {
            fields: Some(selector.into()),
            ..Self::default()
        }
    }

    /// Keeps only the objects that a reconciled object references. The watch brings the metadata of the selected objects
    /// (`PartialObjectMetadata`). A GET reads the content of a referenced object after each list, when the object changes,
    /// when its first reference appears, and when it is granted to another namespace. At most 4 such requests are sent at a time for each scope, each with a timeout of 10 s.
    ///
    /// It needs the permission to get the objects, in addition to those to list and watch them. The store contains no other
    /// object. A reconcile waits until the content of the referenced objects that exist is in the store.
    ///
    /// Such a resource type can be [watched](crate::ControllerBuilder::watches), but neither reconciled nor owned.
    #[must_use]
    pub fn referenced_only(mut self) -> Self {
        self.referenced_only = true;
        self
    }

    /// Selects only the objects with this label as well.
    pub(crate) fn and_label(self, label: &str, value: &str) -> Self {
        let labels = self.labels.map(|labels| format!("{labels},"));
        Self {
            labels: Some(format!("{}{label}={value}", labels.unwrap_or_default())),
            ..self
        }
    }

    pub(crate) fn label_selector(&self) -> Option<String> {
        self.labels.clone()
    }

    pub(crate) fn field_selector(&self) -> Option<String> {
        self.fields.clone()
    }

    pub(crate) fn is_referenced_only(&self) -> bool {
        self.referenced_only
    }

    /// Returns the labels that the selector requires with a single value.
    pub(crate) fn required_labels(&self) -> Vec<(String, String)> {
        let requirements = requirements(self.labels.as_deref().unwrap_or_default());
        let required = requirements.filter_map(|one| match parse_label(one) {
            Some(Requirement::Equal(label, value)) => Some((label.to_owned(), value.to_owned())),
            _ => None,
        });
        required.collect()
    }

    /// Returns whether the objects with the required labels are selected.
    pub(crate) fn is_met_by_labels(&self) -> bool {
        let required = self.required_labels();
        let distinct: BTreeSet<_> = required.iter().map(|(label, _)| label).collect();
        let labels = self.labels.as_deref();
        self.fields.is_none()
            && distinct.len() == labels.map_or(0, |text| requirements(text).count())
    }

    /// Returns the first invalid part of a selector.
    pub(crate) fn error(&self) -> Option<String> {
        let wrong = |text: &Option<String>, is_valid: fn(&str) -> bool| {
            let mut all = requirements(text.as_deref()?);
            all.find(|one| !is_valid(one)).map(ToOwned::to_owned)
        };
        let label = wrong(&self.labels, |one| parse_label(one).is_some());
        let label = label.map(|one| format!("label selector {one:?}"));
        let field = || wrong(&self.fields, is_field).map(|one| format!("field selector {one:?}"));
        label.or_else(field)
    }
}

/// For `/debug/state`. Empty if all objects are selected.
impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.labels.iter().map(|text| format!("labels {text}"));
        let fields = self.fields.iter().map(|text| format!("fields {text}"));
        let only = self.referenced_only.then(|| "referenced only".to_owned());
        let parts: Vec<_> = labels.chain(fields).chain(only).collect();
        f.write_str(&parts.join("; "))
    }
}

enum Requirement<'a> {
    Equal(&'a str, &'a str),
    Other,
}

/// Splits a selector at its commas outside of parentheses.
fn requirements(selector: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    let parts = selector.split(move |c| {
        is_inside = c == '(' || is_inside && c != ')';
        c == ',' && !is_inside
    });
    parts.map(str::trim)
}

/// Parses a requirement as the API server does. `None`: it is invalid.
fn parse_label(text: &str) -> Option<Requirement<'_>> {
    let other = |is_valid: bool| is_valid.then_some(Requirement::Other);
    if let Some(label) = text.strip_prefix('!') {
        return other(is_label(label.trim()));
    }
    for operator in ["!=", "==", "=", ">", "<"] {
        if let Some((label, value)) = text.split_once(operator) {
            let (label, value) = (label.trim(), value.trim());
            let is_valid = is_label(label)
                && match operator {
                    ">" | "<" => value.parse::<i64>().is_ok(),
                    _ => is_value(value),
                };
            return is_valid.then_some(match operator {
                "==" | "=" => Requirement::Equal(label, value),
                _ => Requirement::Other,
            });
        }
    }
    let Some((left, values)) = text.split_once('(') else {
        return other(is_label(text));
    };
    let (label, operator) = left.trim().split_once(char::is_whitespace)?;
    let (operator, values) = (operator.trim(), values.strip_suffix(')')?);
    if operator == "in" && is_label(label) && is_value(values.trim()) {
        return Some(Requirement::Equal(label, values.trim()));
    }
    let mut values = values.split(',').map(str::trim);
    other(is_label(label) && matches!(operator, "in" | "notin") && values.all(is_value))
}

/// Returns whether this is the name of a label, with an optional prefix.
fn is_label(text: &str) -> bool {
    let (prefix, name) = text.rsplit_once('/').unwrap_or(("a", text));
    crate::api::names::is_subdomain(prefix, 253) && !name.is_empty() && is_value(name)
}

/// Returns whether this is the value of a label.
fn is_value(text: &str) -> bool {
    let is_edge = |c: Option<u8>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let is_inner = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    let mut bytes = text.bytes();
    text.len() <= 63
        && bytes.all(is_inner)
        && is_edge(text.bytes().next())
        && is_edge(text.bytes().next_back())
}

/// Returns whether this compares a field with a value.
fn is_field(text: &str) -> bool {
    let mut operators = ["!=", "==", "="].into_iter();
    let compared = operators.find_map(|operator| text.split_once(operator));
    compared.is_some_and(|(path, value)| !path.is_empty() && !value.contains('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The API server would reject such a selector with each request.
    #[test]
    fn an_invalid_selector_is_an_error() {
        for valid in [
            "a=b",
            "a==b,c!=d",
            "example.com/a=",
            "a",
            "!a",
            "! a, b",
            "a in (b,c),d=e",
            "a notin ( b )",
            "a>5",
            "a<-5",
        ] {
            assert_eq!(Select::labels(valid).error(), None, "{valid}");
        }
        for wrong in [
            "", "a=b,", "a b", "=b", "a=b=c", "a=b c", "-a=b", "a=b-", "A_/a=b", "a/b/c", "a in b",
            "a in (b", "a of (b)", "a>b",
        ] {
            assert!(Select::labels(wrong).error().is_some(), "{wrong}");
        }
        for valid in [
            "type!=helm.sh/release.v1",
            "metadata.name=a,type==b",
            "type=",
        ] {
            assert_eq!(Select::fields(valid).error(), None, "{valid}");
        }
        for wrong in ["", "type", "=a", "type=a=b", "type=a,"] {
            assert!(Select::fields(wrong).error().is_some(), "{wrong}");
        }
        let said = Select::labels("a=b,c d").error();
        assert_eq!(said.as_deref(), Some("label selector \"c d\""));
    }

    #[test]
    fn equalities_are_required_labels() {
        let select = Select::labels("a=b, c == d,e!=f,g in ( h ),i,!j,k=,l in (m,n)");
        let owned = |(label, value): (&str, &str)| (label.to_owned(), value.to_owned());
        let required = [("a", "b"), ("c", "d"), ("g", "h"), ("k", "")].map(owned);
        assert_eq!(select.required_labels(), required);
        assert_eq!(Select::fields("type=a").required_labels(), []);
    }

    #[test]
    fn only_distinct_equalities_are_met_by_labels() {
        assert!(Select::default().is_met_by_labels());
        assert!(Select::labels("a=b,c==d,e in (f)").is_met_by_labels());
        for other in [
            "a=b,c!=d",
            "a=b,a=c",
            "a in (b,c)",
            "a notin (b)",
            "a",
            "!a",
            "a>1",
        ] {
            assert!(!Select::labels(other).is_met_by_labels(), "{other}");
        }
        assert!(!Select::fields("type=a").is_met_by_labels());
    }

    #[test]
    fn the_text_names_each_part() {
        assert_eq!(Select::default().to_string(), "");
        let select = Select::labels("a=b").referenced_only();
        assert_eq!(select.to_string(), "labels a=b; referenced only");
        let also =
            [Select::default(), Select::labels("a in (b,c)")].map(|it| it.and_label("d/e", "f"));
        assert_eq!(
            also.each_ref().map(ToString::to_string),
            ["labels d/e=f", "labels a in (b,c),d/e=f"]
        );
        assert!(also.iter().all(|it| it.error().is_none()));
    }
}
