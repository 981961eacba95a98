//! Kinds that are compiled into the API server. Unknown fields are removed, and empty fields are omitted.

use k8s_openapi::api::{
    apps::v1::Deployment,
    autoscaling::v1::Scale,
    batch::v1::Job,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event as CoreEvent, Namespace, Secret, Service, ServiceAccount},
    events::v1::Event,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Kind, event, pods, time};

/// Parses an object like the API server, or returns the parser's error.
pub fn read(kind: Kind, mut object: Value) -> Result<Value, String> {
    if matches!(kind, Kind::Deployment | Kind::Job)
        && let Some(template) = object.pointer_mut("/spec/template")
        && let Some(of) = pods::read::template()
    {
        pods::read::read_nulls(of, template);
    }
    let texts: &[&str] = match kind {
        Kind::Service => &["/spec/selector"],
        Kind::ConfigMap | Kind::Secret => &["/data", "/binaryData", "/stringData"],
        _ => &[],
    };
    for path in texts {
        // Go reads a null string as an empty string.
        let all = object.pointer_mut(path).and_then(Value::as_object_mut);
        for value in all.into_iter().flat_map(|all| all.values_mut()) {
            if value.is_null() {
                *value = "".into();
            }
        }
    }
    let times = replace_times(kind, &mut object)?;
    // An empty list removes all managers.
    let resets = object["metadata"]["managedFields"]
        .as_array()
        .is_some_and(Vec::is_empty);
    // A missing selector must stay missing, because it is required.
    let has_selector = object["spec"]["selector"].is_object();
    let mut object = match kind {
        Kind::Namespace => round_trip::<Namespace>(object),
        Kind::ServiceAccount => round_trip::<ServiceAccount>(object),
        Kind::Deployment => round_trip::<Deployment>(object),
        Kind::Service => round_trip::<Service>(object),
        Kind::ConfigMap => round_trip::<ConfigMap>(object),
        Kind::Secret => round_trip::<Secret>(object),
        Kind::Job => round_trip::<Job>(object),
        Kind::Lease => round_trip::<Lease>(object),
        Kind::Event => round_trip::<Event>(object),
        Kind::CoreEvent => round_trip::<CoreEvent>(object),
        Kind::Custom(_)
        | Kind::StorageClass
        | Kind::CustomResourceDefinition
        | Kind::ValidatingAdmissionPolicy
        | Kind::MutatingAdmissionPolicy => {
            return Err(format!("{kind:?} is not compiled in"));
        }
    }?;
    tidy(&mut object);
    if resets {
        object["metadata"]["managedFields"] = serde_json::json!([]);
    }
    for (path, time) in times {
        if let Some(place) = object.pointer_mut(path) {
            *place = time;
        }
    }
    match kind {
        Kind::Lease | Kind::Service if object["spec"].is_null() => {
            object["spec"] = serde_json::json!({});
        }
        Kind::Job => {
            for field in ["spec", "status"] {
                if object[field].is_null() {
                    object[field] = serde_json::json!({});
                }
            }
        }
        Kind::Deployment => {
            if !has_selector && let Some(spec) = object["spec"].as_object_mut() {
                spec.remove("selector");
            }
            if let Some(status) = object["status"].as_object_mut()
                && status
                    .get("replicas")
                    .is_some_and(|replicas| *replicas == 0)
            {
                status.remove("replicas");
            }
            let conditions = object.pointer_mut("/status/conditions");
            for condition in (conditions.and_then(Value::as_array_mut).into_iter()).flatten() {
                for time in ["lastTransitionTime", "lastUpdateTime"] {
                    if condition[time].is_null() {
                        condition[time] = Value::Null;
                    }
                }
            }
            for field in ["spec", "status"] {
                if object[field].is_null() {
                    object[field] = serde_json::json!({});
                }
            }
        }
        Kind::Event | Kind::CoreEvent => object = event::filled(kind, object),
        _ => {}
    }
    Ok(object)
}

/// Parses each `MicroTime` like Go, and puts a placeholder in its place, because k8s-openapi parses times differently. Returns the
/// path and the parsed value of each.
fn replace_times(kind: Kind, object: &mut Value) -> Result<Vec<(&'static str, Value)>, String> {
    let paths: &[&str] = match kind {
        Kind::Lease => &["/spec/acquireTime", "/spec/renewTime"],
        Kind::Event | Kind::CoreEvent => &["/eventTime", "/series/lastObservedTime"],
        _ => &[],
    };
    let mut times = Vec::new();
    // Go accepts a series without a time.
    if let Some(series) = object.get_mut("series").and_then(Value::as_object_mut)
        && kind == Kind::Event
    {
        series.entry("lastObservedTime").or_insert(Value::Null);
    }
    for path in paths {
        let Some(place) = object.pointer_mut(path) else {
            continue;
        };
        let time = match &*place {
            Value::Null if kind == Kind::Event => Value::Null,
            Value::Null => continue,
            time => time::micro(time)?,
        };
        times.push((*path, time));
        *place = "1970-01-01T00:00:00.000000Z".into();
    }
    Ok(times)
}

/// Parses a CRD.
pub fn read_definition(definition: Value) -> Result<Value, String> {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let mut definition = round_trip::<CustomResourceDefinition>(definition)?;
    if let Some(fields) = definition.as_object_mut() {
        let metadata = fields
            .entry("metadata")
            .or_insert_with(|| serde_json::json!({}));
        tidy_metadata(metadata);
    }
    Ok(definition)
}

pub fn read_scale(scale: Value) -> Result<Value, String> {
    let mut scale = round_trip::<Scale>(scale)?;
    tidy(&mut scale);
    Ok(scale)
}

pub fn read_metadata(metadata: Value) -> Result<Value, String> {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    let mut metadata = round_trip::<ObjectMeta>(metadata)?;
    tidy_metadata(&mut metadata);
    Ok(metadata)
}

/// Reads the metadata of a custom resource. Returns the paths of unknown fields, and the metadata or the parser's error.
pub fn unknown_metadata(metadata: &Value) -> (Vec<String>, Result<Value, String>) {
    const KNOWN: [&str; 15] = [
        "annotations",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "labels",
        "managedFields",
        "name",
        "namespace",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    ];
    let fields = metadata.as_object().into_iter().flatten();
    let unknown = fields.filter(|(field, _)| !KNOWN.contains(&field.as_str()));
    let unknown = unknown
        .map(|(field, _)| format!("metadata.{field}"))
        .collect();
    let metadata = if metadata.is_null() {
        serde_json::json!({})
    } else {
        metadata.clone()
    };
    (unknown, read_metadata(metadata))
}

fn round_trip<T: DeserializeOwned + Serialize>(object: Value) -> Result<Value, String> {
    let object: T = serde_json::from_value(object).map_err(|error| error.to_string())?;
    serde_json::to_value(object).map_err(|error| error.to_string())
}

fn tidy(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        let metadata = fields
            .entry("metadata")
            .or_insert_with(|| serde_json::json!({}));
        tidy_metadata(metadata);
    }
    leave_out(object);
}

fn tidy_metadata(metadata: &mut Value) {
    leave_out(metadata);
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("selfLink");
        fields.retain(|_, value| *value != "");
    }
}

/// Returns whether this is a map of strings, which keeps empty strings.
fn is_map(field: &str, value: &Value) -> bool {
    let texts = |value: &Value| {
        value
            .as_object()
            .is_some_and(|all| all.values().all(Value::is_string))
    };
    matches!(
        field,
        "labels" | "annotations" | "matchLabels" | "data" | "binaryData" | "stringData"
    ) || field == "selector" && texts(value)
}

/// Removes the fields that Go's `omitempty` removes.
fn leave_out(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // The defaults of a template omit its empty fields.
            let nested = fields
                .iter_mut()
                .filter(|(field, value)| !is_map(field, value) && *field != "template");
            nested.for_each(|(_, value)| leave_out(value));
            fields.retain(|field, value| match value {
                Value::Array(all) => !all.is_empty(),
                Value::Object(all) => {
                    !all.is_empty()
                        || !matches!(
                            field.as_str(),
                            "labels"
                                | "annotations"
                                | "matchLabels"
                                | "data"
                                | "binaryData"
                                | "stringData"
                        )
                }
                Value::Null => false,
                Value::String(text) => !text.is_empty() || field != "note",
                Value::Bool(false) => field != "paused",
                Value::Number(number) if number.as_i64() == Some(0) => !matches!(
                    field.as_str(),
                    "observedGeneration"
                        | "updatedReplicas"
                        | "readyReplicas"
                        | "availableReplicas"
                        | "unavailableReplicas"
                        | "minReadySeconds"
                        | "generation"
                ),
                _ => true,
            });
        }
        Value::Array(all) => all.iter_mut().for_each(leave_out),
        _ => {}
    }
}
