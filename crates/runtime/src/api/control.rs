//! The annotations of a user that pause an object or request a reconcile: `<group>/paused` and
//! `<group>/reconcile-requested-at`, with the API group of the program.

use std::collections::BTreeMap;

const PAUSED: &str = "/paused";
const REQUESTED_AT: &str = "/reconcile-requested-at";

/// Name and value of an annotation.
pub(crate) type Annotation = (String, String);

/// How a user controls the reconciles of an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Control {
    /// Whether the object is not reconciled until its deletion.
    pub is_paused: bool,
    /// Token of the last request.
    pub requested_at: Option<Box<str>>,
}

impl Control {
    /// Returns the control by the annotations of this group. `None` if there is none.
    pub fn of(group: &str, annotations: Vec<Annotation>) -> Option<Self> {
        let mut control = Self::default();
        for (name, value) in annotations {
            match name.strip_prefix(group) {
                Some(PAUSED) => control.is_paused = value == "true",
                Some(REQUESTED_AT) => control.requested_at = Some(value.into()),
                _ => {}
            }
        }
        (control != Self::default()).then_some(control)
    }
}

/// Returns the annotations that may be a [`Control`], from the JSON of all. Most objects have none, so the text is only searched.
pub(crate) fn find(text: &str) -> Vec<Annotation> {
    let has = |name: &str| text.contains(&format!("{name}\""));
    if !has(PAUSED) && !has(REQUESTED_AT) {
        return Vec::new();
    }
    let all: BTreeMap<String, String> = serde_json::from_str(text).unwrap_or_default();
    let is_one = |name: &str| name.ends_with(PAUSED) || name.ends_with(REQUESTED_AT);
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
            let control = Control::of("example.com", find(annotations)).unwrap_or_default();
            let found = (control.is_paused, control.requested_at.as_deref());
            assert_eq!(found, (is_paused, token), "{annotations}");
        }
    }
}
