//! Names of the declared resource types. An author writes them twice: in the attribute `#[kube(…)]` and in the [`Kind`].

use crate::{
    api::{conversion::Definition, kind::Kind},
    cache::readiness::namespace::RequiredAccess,
};

/// Names of a CRD that the program prints.
pub(super) struct Names {
    group: String,
    kind: String,
    plural: String,
    /// The served versions.
    versions: Vec<String>,
}

impl Names {
    pub(super) fn of(definition: &Definition) -> Self {
        let spec = &definition.crd().spec;
        let served = spec.versions.iter().filter(|version| version.served);
        Self {
            group: spec.group.clone(),
            kind: spec.names.kind.clone(),
            plural: spec.names.plural.clone(),
            versions: served.map(|version| version.name.clone()).collect(),
        }
    }

    /// Describes the difference if `kind` has a part of these names.
    fn problem(&self, kind: &Kind) -> Option<String> {
        let is_kind = self.kind == kind.kind;
        let is_plural = self.plural == kind.plural;
        let is_served = self.versions.iter().any(|version| version == kind.version);
        if self.group != kind.group || !(is_kind || is_plural) || is_kind && is_plural && is_served
        {
            return None;
        }
        Some(format!(
            "the Kind of a controller has the names {} {}.{} {}, and the CRD that the program prints has {} {}.{} {}: correct the \
             Kind, or the attribute #[kube(..)]",
            kind.kind,
            kind.plural,
            kind.group,
            kind.version,
            self.kind,
            self.plural,
            self.group,
            self.versions.join(" ")
        ))
    }
}

/// Checks each declared type whose names agree in part with a printed CRD.
///
/// # Panics
/// If the other names differ. The controller would wait for a type that no CRD installs.
pub(super) fn check(needs: &RequiredAccess, printed: &[Names]) {
    for kind in &needs.watched {
        for names in printed {
            let problem = names.problem(kind).unwrap_or_default();
            assert!(problem.is_empty(), "{problem}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that differs is reported. Types of other CRDs are not checked.
    #[test]
    fn names_of_a_kind_that_no_crd_installs_are_reported() {
        let names = Names {
            group: "example.com".to_owned(),
            kind: "Note".to_owned(),
            plural: "notes".to_owned(),
            versions: vec!["v1".to_owned(), "v1beta1".to_owned()],
        };
        for (kind, is_well) in [
            (Kind::custom("example.com", "v1", "Note", "notes"), true),
            (Kind::custom("example.com", "v1", "Note", "note"), false),
            (Kind::custom("example.com", "v1", "Notes", "notes"), false),
            (
                Kind::custom("example.com", "v1beta1", "Note", "notes"),
                true,
            ),
            (Kind::custom("example.com", "v2", "Note", "notes"), false),
            (Kind::custom("example.com", "v1", "Tag", "tags"), true),
            (Kind::custom("other.com", "v1", "Note", "note"), true),
        ] {
            let problem = names.problem(&kind);
            assert_eq!(problem.is_none(), is_well, "{kind:?}: {problem:?}");
        }
        let problem = names.problem(&Kind::custom("example.com", "v1", "Note", "note"));
        let expected = "has the names Note note.example.com v1, and the CRD that the program prints has Note notes.example.com v1 v1beta1:";
        assert!(problem.is_some_and(|text| text.contains(expected)));
    }
}
