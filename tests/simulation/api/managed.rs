//! Who manages `spec.replicas`: of `metadata.managedFields`, what decides whether a write that changes nothing else makes a
//! version.
//!
//! A scale takes the replicas out of the entry of whoever set them with the rest, and makes an entry of them, even where it
//! changes nothing. Those two have the same manager, so the next write of any kind reads only one of them, and then nobody
//! manages the replicas until somebody sets them to another number.
//!
//! Only the entries that have the replicas are here, and nothing else of them. Whoever sets the replicas of the whole object
//! is taken to manage more of it, as who creates it does.

use serde_json::{Value, json};

use super::{
    Kind,
    request::{Part, Request},
    strategy::keep,
};

/// Who manages the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Managed {
    ByNobody,
    /// With other fields.
    WithTheRest,
    /// As the scale, and nothing else.
    AsScale,
    /// By two entries of one manager, of which the next write reads the one without them.
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

    /// After a write of this part.
    fn after(self, part: Part, old: &Value, new: &Value) -> Self {
        let (was, is) = (&old["spec"]["replicas"], &new["spec"]["replicas"]);
        match (part, self) {
            // A scale to 0 does not say so: to the API server, its replicas have been removed.
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

/// Has `new`, which is to replace `old` (or nothing), say who manages its replicas.
pub fn note(request: &Request<'_>, (kind, part): (Kind, Part), old: &Value, new: &mut Value) {
    if !matches!(kind, Kind::Foo | Kind::Deployment) {
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
        "manager": request.text("fieldManager"), "operation": "Update", "apiVersion": kind.api_version(),
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
