//! The annotations and labels for the runtime, whose names begin with the API group of the program. The annotations
//! `<group>/paused` and `<group>/reconcile-requested-at` control the reconciles of an object, and `<group>/grant-to` lets objects
//! of other namespaces read it. The label `<group>/installation` names the installation that reconciles the object.

use std::collections::BTreeMap;

use crate::api::key::Key;

const PAUSED: &str = "/paused";
const REQUESTED_AT: &str = "/reconcile-requested-at";
pub(crate) const GRANT_TO: &str = "/grant-to";
const INSTALLATION: &str = "/installation";

/// Name and value of an annotation or a label.
pub(crate) type Annotation = (String, String);

/// How a user controls the reconciles of an object, and the access to it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Control {
    /// Whether the object is not reconciled until its deletion.
    pub is_paused: bool,
    /// Token of the last request.
    pub requested_at: Option<Box<str>>,
    /// The namespaces whose objects may read the object, separated by commas. `*`: all namespaces.
    granted_to: Option<Box<str>>,
    /// The other installation that the label `<group>/installation` names. Empty: the default installation.
    pub other_installation: Option<Box<str>>,
}

/// Returns the name of the label whose value is the installation that reconciles an object.
pub(crate) fn installation_label(group: &str) -> String {
    format!("{group}{INSTALLATION}")
}

/// Returns the installation that these labels name, if it is not `own`. Without the label, or with an empty value, it is the
/// default installation, whose name is empty.
pub(crate) fn other_installation(
    group: &str,
    labels: &[Annotation],
    own: &str,
) -> Option<Box<str>> {
    let is_label = |name: &str| name.strip_prefix(group) == Some(INSTALLATION);
    let named = labels.iter().find(|(name, _)| is_label(name));
    let named = named.map_or("", |(_, value)| value);
    (named != own).then(|| named.into())
}

impl Control {
    /// Returns the control by the annotations of this group. `None` if there is none. Only a reconciled object can be paused or
    /// requested.
    pub(crate) fn of(
        group: &str,
        annotations: Vec<Annotation>,
        is_reconciled: bool,
    ) -> Option<Self> {
        let mut control = Self::default();
        for (name, value) in annotations {
            match name.strip_prefix(group) {
                Some(PAUSED) if is_reconciled => control.is_paused = value == "true",
                Some(REQUESTED_AT) if is_reconciled => control.requested_at = Some(value.into()),
                Some(GRANT_TO) => control.granted_to = Some(value.into()),
                _ => {}
            }
        }
        (control != Self::default()).then_some(control)
    }

    /// Returns whether both control the reconciles alike.
    pub(crate) fn is_same_for_reconciles(&self, other: &Self) -> bool {
        (self.is_paused, &self.requested_at) == (other.is_paused, &other.requested_at)
    }

    /// Returns the elements of the grant.
    fn grants(&self) -> impl Iterator<Item = &str> {
        let granted = self.granted_to.as_deref().unwrap_or_default();
        granted
            .split(',')
            .map(str::trim)
            .filter(|it| !it.is_empty())
    }

    fn is_granted_to(&self, namespace: &str) -> bool {
        self.grants()
            .any(|it| it == EVERY_NAMESPACE || it == namespace)
    }
}

/// Element of a grant to every namespace.
const EVERY_NAMESPACE: &str = "*";

/// Returns whether the object `from` may read the object `to`, which has this control.
///
/// A namespaced object may read the objects of its own namespace, cluster-scoped objects, and the objects that are granted to its
/// namespace. A cluster-scoped object may read all: its authors must have permissions for the whole cluster.
pub(crate) fn may_read(from: &Key, to: &Key, control: Option<&Control>) -> bool {
    let (own, other) = (from.namespace(), to.namespace());
    own.is_empty()
        || other.is_empty()
        || own == other
        || control.is_some_and(|control| control.is_granted_to(own))
}

/// Returns whether `new` grants at least all that `old` grants.
pub(crate) fn keeps_grants(old: Option<&Control>, new: Option<&Control>) -> bool {
    let mut before = old.into_iter().flat_map(Control::grants);
    before.all(|it| new.is_some_and(|new| new.is_granted_to(it)))
}

/// Returns the annotations or labels that may be for the runtime, from the JSON of all. Most objects have none, so the text is only
/// searched.
pub(crate) fn find(text: &str) -> Vec<Annotation> {
    const NAMES: [&str; 4] = [PAUSED, REQUESTED_AT, GRANT_TO, INSTALLATION];
    let is_end_of_name = |(at, name): (usize, &str)| text[at + name.len()..].starts_with('"');
    if !(NAMES.iter()).any(|name| text.match_indices(name).any(is_end_of_name)) {
        return Vec::new();
    }
    let all: BTreeMap<String, String> = serde_json::from_str(text).unwrap_or_default();
    let is_one = |name: &str| NAMES.iter().any(|end| name.ends_with(end));
    all.into_iter().filter(|(name, _)| is_one(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another group is another program.
    #[test]
    fn the_annotations_of_the_group_are_read() {
        for (annotations, is_paused, token) in [
            (r#"{"example.com/paused":"true"}"#, true, None),
            (r#"{"example.com/paused":"yes"}"#, false, None),
            (r#"{"other.example.com/paused":"true"}"#, false, None),
            (
                r#"{"paused":"true","example.com/paused2":"true"}"#,
                false,
                None,
            ),
            (r#"{"a":"example.com/paused"}"#, false, None),
            (
                r#"{"a":"b","example.com/reconcile-requested-at":"t1","example.com/paused":"false"}"#,
                false,
                Some("t1"),
            ),
            ("null", false, None),
            ("5", false, None),
        ] {
            let control = Control::of("example.com", find(annotations), true).unwrap_or_default();
            let found = (control.is_paused, control.requested_at.as_deref());
            assert_eq!(found, (is_paused, token), "{annotations}");
            let other = Control::of("example.com", find(annotations), false);
            assert_eq!(other, None, "it is not reconciled: {annotations}");
        }
    }

    /// Another group is another program, and an empty value is the default installation.
    #[test]
    fn the_label_names_the_installation() {
        for (labels, own, other) in [
            ("{}", "", None),
            ("null", "", None),
            ("{}", "canary", Some("")),
            (r#"{"example.com/installation":""}"#, "", None),
            (r#"{"example.com/installation":""}"#, "canary", Some("")),
            (
                r#"{"example.com/installation":"canary"}"#,
                "",
                Some("canary"),
            ),
            (
                r#"{"a":"b","example.com/installation":"canary"}"#,
                "canary",
                None,
            ),
            (
                r#"{"example.com/installation":"Canary"}"#,
                "canary",
                Some("Canary"),
            ),
            (r#"{"other.example.com/installation":"canary"}"#, "", None),
            (
                r#"{"installation":"canary","a":"example.com/installation"}"#,
                "",
                None,
            ),
        ] {
            let found = other_installation("example.com", &find(labels), own);
            assert_eq!(found.as_deref(), other, "{labels} {own}");
        }
    }

    fn granted(to: &str) -> Option<Control> {
        let annotations = serde_json::json!({ "example.com/grant-to": to }).to_string();
        Control::of("example.com", find(&annotations), false)
    }

    /// Everything but the name of the namespace or the whole element `*` denies.
    #[test]
    fn a_grant_names_the_namespace() {
        let may = |from: &str, control: Option<&Control>| {
            may_read(&Key::new(from, "a"), &Key::new("target", "b"), control)
        };
        for (to, is_granted) in [
            ("team-a", true),
            (" b , team-a,c", true),
            ("*", true),
            ("b, *", true),
            ("", false),
            (",", false),
            ("team", false),
            ("team-a2", false),
            ("team-*", false),
            ("team-a/b", false),
            ("TEAM-A", false),
            ("b team-a", false),
        ] {
            assert_eq!(may("team-a", granted(to).as_ref()), is_granted, "{to}");
        }
        let other =
            find(r#"{"other.example.com/grant-to":"*","grant-to":"*","a":"example.com/grant-to"}"#);
        assert!(!may(
            "team-a",
            Control::of("example.com", other, true).as_ref()
        ));
        assert!(!may("team-a", None));
        assert!(may("target", None), "its own namespace");
        assert!(may("", None), "a cluster-scoped object");
        assert!(may_read(&Key::new("team-a", "a"), &Key::cluster("b"), None));
    }

    #[test]
    fn a_withdrawn_grant_is_found() {
        for (old, new, is_kept) in [
            (None, None, true),
            (None, Some("a"), true),
            (Some("a"), Some("b,a"), true),
            (Some("a,b"), Some("*"), true),
            (Some("*"), Some("*,a"), true),
            (Some("a"), None, false),
            (Some("a,b"), Some("a"), false),
            (Some("*"), Some("a"), false),
        ] {
            let [before, after] = [old, new].map(|to| to.and_then(granted));
            let found = keeps_grants(before.as_ref(), after.as_ref());
            assert_eq!(found, is_kept, "{old:?} {new:?}");
        }
    }
}
