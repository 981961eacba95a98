//! The managers of an object: `metadata.managedFields` (`util/managedfields/internal/managedfields.go`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{set::Set, text};

/// Largest number of entries of updates.
const MAX_UPDATES: usize = 10;
/// Manager of the oldest updates.
const ANCIENT: &str = "ancient-changes";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

/// Identity of a manager.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    pub name: String,
    pub operation: Operation,
    /// Empty for appliers: each has one entry, in the version of its last apply.
    pub version: String,
    pub subresource: String,
}

/// Fields of a manager.
#[derive(Clone, Debug)]
pub struct Owned {
    /// `apiVersion` of the fields.
    pub version: String,
    pub fields: Set,
    pub time: Option<String>,
}

pub type Managers = BTreeMap<Manager, Owned>;

/// Parses the entries, or returns why they are invalid.
pub fn read(entries: &Value) -> Result<Managers, String> {
    let mut managers = Managers::new();
    for entry in entries.as_array().into_iter().flatten() {
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        let operation = match entry["operation"].as_str() {
            Some("Apply") => Operation::Apply,
            Some("Update") => Operation::Update,
            _ => return Err("operation must be `Apply` or `Update`".to_owned()),
        };
        let version = text("apiVersion");
        if version.is_empty() {
            return Err("apiVersion must not be empty".to_owned());
        }
        if entry["fieldsType"] != "FieldsV1" {
            return Err("invalid fieldsType".to_owned());
        }
        let fields = match &entry["fieldsV1"] {
            Value::Null => Set::default(),
            fields => text::from_json(fields)?,
        };
        let is_update = operation == Operation::Update;
        let manager = Manager {
            name: text("manager"),
            operation,
            version: if is_update {
                version.clone()
            } else {
                String::new()
            },
            subresource: text("subresource"),
        };
        let time = entry["time"].as_str().map(ToOwned::to_owned);
        let owned = Owned {
            version,
            fields,
            time,
        };
        managers.insert(manager, owned);
    }
    Ok(managers)
}

/// Returns the entries: appliers first, and then by time. Nothing, if there are none.
pub fn write(managers: &Managers) -> Option<Value> {
    let mut entries: Vec<_> = managers.iter().collect();
    entries.sort_by_key(|(manager, owned)| {
        let (name, subresource) = (&manager.name, &manager.subresource);
        (
            manager.operation,
            &owned.time,
            name,
            &owned.version,
            subresource,
        )
    });
    let entries = entries.into_iter().map(|(manager, owned)| {
        let mut entry = json!({
            "apiVersion": owned.version, "fieldsType": "FieldsV1", "fieldsV1": text::to_json(&owned.fields),
            "operation": match manager.operation {
                Operation::Apply => "Apply",
                Operation::Update => "Update",
            },
        });
        if !manager.name.is_empty() {
            entry["manager"] = manager.name.as_str().into();
        }
        if !manager.subresource.is_empty() {
            entry["subresource"] = manager.subresource.as_str().into();
        }
        if let Some(time) = &owned.time {
            entry["time"] = time.as_str().into();
        }
        entry
    });
    (!managers.is_empty()).then(|| entries.collect())
}

/// Returns whether the request removes all managers.
pub fn is_reset(entries: &Value) -> bool {
    match entries.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(serde_json::Map::is_empty),
        _ => false,
    }
}

/// Merges the oldest updates of each version, if there are too many.
pub fn cap(managers: &mut Managers) {
    let updates = managers
        .iter()
        .filter(|(manager, _)| manager.operation == Operation::Update);
    let mut updates: Vec<_> = updates
        .map(|(manager, owned)| (owned.time.clone(), manager.clone()))
        .collect();
    updates.sort();
    let mut count = updates.len();
    let mut first: BTreeMap<String, Manager> = BTreeMap::new();
    for (_, manager) in updates {
        if count <= MAX_UPDATES {
            return;
        }
        let Some(version) = managers.get(&manager).map(|owned| owned.version.clone()) else {
            continue;
        };
        let Some(first) = first.get(&version) else {
            first.insert(version, manager);
            continue;
        };
        let bucket = Manager {
            name: ANCIENT.to_owned(),
            operation: Operation::Update,
            version,
            subresource: String::new(),
        };
        if !managers.contains_key(&bucket)
            && let Some(owned) = managers.remove(first)
        {
            managers.insert(bucket.clone(), owned);
        }
        let (Some(owned), Some(merged)) =
            (managers.get(&manager).cloned(), managers.get_mut(&bucket))
        else {
            continue;
        };
        merged.fields = std::mem::take(&mut merged.fields).union(owned.fields);
        merged.time = owned.time;
        managers.remove(&manager);
        count -= 1;
    }
}

impl Manager {
    /// Formats a manager in a conflict.
    pub fn shown(&self) -> String {
        let mut shown = super::super::schema::go::quoted(&self.name);
        if !self.subresource.is_empty() {
            shown = format!("{shown} with subresource {:?}", self.subresource);
        }
        match self.operation {
            Operation::Apply => shown,
            Operation::Update => format!("{shown} using {}", self.version),
        }
    }
}
