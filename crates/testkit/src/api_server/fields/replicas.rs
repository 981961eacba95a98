//! Manager of `spec.replicas` in a store that keeps no managers. This part of `metadata.managedFields` decides whether a write of the
//! scale that changes nothing else creates a version.
//!
//! A scale moves the replicas from the entry with other fields to their own entry, even if it does not change their number.
//! Both entries then have the same manager, so the next write reads only one entry. After that the replicas have no manager
//! until their number changes. A client that sets the replicas in the whole object is assumed to manage other fields as well, like
//! a creator.

use serde_json::{Value, json};

use super::super::{
    Kind,
    request::{Part, Request},
    strategy::keep,
};

/// Manager of the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Managed {
    ByNobody,
    /// With other fields.
    WithTheRest,
    /// As the scale subresource, and nothing else.
    AsScale,
    /// In two entries of one manager. The next write reads the entry without them.
    Split,
}

impl Managed {
    fn of(object: &Value) -> Self {
        match object["metadata"]["managedFields"]
            .as_array()
            .map(Vec::as_slice)
        {
            None | Some([]) => Self::ByNobody,
            Some([one]) if one["subresource"] == "scale" => Self::AsScale,
            Some([_]) => Self::WithTheRest,
            Some(_) => Self::Split,
        }
    }

    /// Returns the manager after a write of this part.
    fn after(self, part: Part, old: &Value, new: &Value) -> Self {
        let (was, is) = (&old["spec"]["replicas"], &new["spec"]["replicas"]);
        match (part, self) {
            // A scale to 0 omits the number, so the API server considers the replicas removed.
            (Part::Scale, Self::WithTheRest | Self::AsScale) if was != is && *is == 0 => {
                Self::ByNobody
            }
            (Part::Scale, Self::WithTheRest | Self::AsScale) if was != is => Self::AsScale,
            (Part::Scale, Self::WithTheRest) => Self::Split,
            (Part::Whole, _) if was != is && is.is_null() => Self::ByNobody,
            (Part::Whole, _) if was != is => Self::WithTheRest,
            (_, Self::Split) => Self::ByNobody,
            (_, same) => same,
        }
    }
}

/// Sets the manager of the replicas in `new`, which replaces `old` (or nothing).
pub fn note(request: &Request<'_>, (kind, part): (Kind, Part), old: &Value, new: &mut Value) {
    if !kind.has_scale() {
        return;
    }
    let managed = Managed::of(old).after(part, old, new);
    if managed == Managed::of(old) {
        keep(
            &mut new["metadata"],
            "managedFields",
            old["metadata"].get("managedFields"),
        );
        return;
    }
    let mut entry = json!({
        "manager": request.text("fieldManager"), "operation": "Update", "apiVersion": request.api_version(kind),
        "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": { "f:replicas": {} } },
    });
    let entries = match managed {
        Managed::ByNobody => None,
        Managed::WithTheRest => Some(json!([entry])),
        Managed::AsScale => {
            entry["subresource"] = "scale".into();
            Some(json!([entry]))
        }
        Managed::Split => {
            let one = &old["metadata"]["managedFields"][0];
            Some(json!([one, one]))
        }
    };
    keep(&mut new["metadata"], "managedFields", entries.as_ref());
}
