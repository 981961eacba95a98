//! Events, which two APIs serve from one store: `events.k8s.io/v1` and `v1` (`pkg/apis/events/v1/conversion.go`). They are stored
//! in the form of `events.k8s.io/v1`.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::{
    Kind, metadata,
    request::Unknown,
    status::{Cause, Result},
};

/// Fields with different names: in `events.k8s.io/v1`, and in `v1`.
const NAMES: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Maximum length of the action, the reason and the reporting instance.
const MAX_TEXT: usize = 128;
const MAX_NOTE: usize = 1024;

/// Returns an Event in the form of `kind`.
pub fn present(kind: Kind, event: &Value) -> Cow<'_, Value> {
    if kind == Kind::CoreEvent && event["apiVersion"] != *kind.api_version() {
        let renamed = renamed(event, kind, |(stored, core)| (stored, core));
        return Cow::Owned(filled(kind, renamed));
    }
    Cow::Borrowed(event)
}

/// Returns an Event as it is stored.
pub fn to_storage(event: Value) -> Value {
    if event["apiVersion"] != *Kind::CoreEvent.api_version() {
        return event;
    }
    filled(
        Kind::Event,
        renamed(&event, Kind::Event, |(stored, core)| (core, stored)),
    )
}

fn renamed(
    event: &Value,
    kind: Kind,
    direction: fn((&'static str, &'static str)) -> (&'static str, &'static str),
) -> Value {
    let fields = event.as_object().into_iter().flatten();
    let mut renamed: Value = fields
        .map(|(field, value)| {
            let mut names = NAMES.into_iter().map(direction);
            let name = names.find(|(from, _)| field == from);
            let name = name.map_or(field.as_str(), |(_, to)| to);
            (name.to_owned(), value.clone())
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    renamed["apiVersion"] = kind.api_version().into();
    renamed
}

/// Adds the fields that Go writes although they are empty, and removes the other empty fields.
pub fn filled(kind: Kind, mut event: Value) -> Value {
    let is_core = kind == Kind::CoreEvent;
    let Some(fields) = event.as_object_mut() else {
        return event;
    };
    fields.retain(|_, value| !value.is_null() && *value != "" && *value != 0);
    let name = |(stored, core)| if is_core { core } else { stored };
    for (field, empty) in [
        ("eventTime", Value::Null),
        (name(NAMES[0]), json!({})),
        (name(NAMES[3]), json!({})),
        (name(NAMES[4]), Value::Null),
        (name(NAMES[5]), Value::Null),
    ] {
        fields.entry(field).or_insert(empty);
    }
    if is_core {
        for field in ["reportingComponent", "reportingInstance"] {
            fields.entry(field).or_insert_with(|| json!(""));
        }
    }
    if let Some(series) = fields.get_mut("series").and_then(Value::as_object_mut) {
        series.entry("lastObservedTime").or_insert(Value::Null);
        if !is_core {
            series.entry("count").or_insert(json!(0));
        } else if series.get("count").is_some_and(|count| *count == 0) {
            series.remove("count");
        }
    }
    event
}

/// Returns a text of a stored Event, which may be empty.
fn text<'a>(event: &'a Value, field: &str) -> &'a str {
    event[field].as_str().unwrap_or_default()
}

/// Returns the value of a field in a selector (`pkg/registry/core/event/strategy.go`, `ToSelectableFields`), or nothing
/// for another field.
pub fn selectable(kind: Kind, field: &str) -> Option<fn(&Value) -> &str> {
    let reference = match kind {
        Kind::CoreEvent => "involvedObject.",
        _ => "regarding.",
    };
    match field.strip_prefix(reference) {
        Some("kind") => Some(|it| text(&it["regarding"], "kind")),
        Some("namespace") => Some(|it| text(&it["regarding"], "namespace")),
        Some("name") => Some(|it| text(&it["regarding"], "name")),
        Some("uid") => Some(|it| text(&it["regarding"], "uid")),
        Some("apiVersion") => Some(|it| text(&it["regarding"], "apiVersion")),
        Some("resourceVersion") => Some(|it| text(&it["regarding"], "resourceVersion")),
        Some("fieldPath") => Some(|it| text(&it["regarding"], "fieldPath")),
        Some(_) => None,
        None => match (field, kind) {
            ("reason", _) => Some(|it| text(it, "reason")),
            ("type", _) => Some(|it| text(it, "type")),
            ("reportingComponent", Kind::CoreEvent) | ("reportingController", Kind::Event) => {
                Some(|it| text(it, "reportingController"))
            }
            ("source", Kind::CoreEvent) => {
                Some(|it| match text(&it["deprecatedSource"], "component") {
                    "" => text(it, "reportingController"),
                    component => component,
                })
            }
            _ => None,
        },
    }
}

/// Validates an Event that replaces `old`, or a new one (`pkg/apis/core/validation/events.go`).
pub fn check(kind: Kind, event: &Value, old: Option<&Value>) -> Result<Vec<Cause>> {
    let (event, old) = (stored(event), old.map(stored));
    let mut causes = check_always(kind, &event);
    if kind == Kind::CoreEvent {
        return Ok(causes);
    }
    match old {
        None => causes.extend(check_new(&event)),
        Some(old) => causes.extend(check_change(&event, &old)?),
    }
    Ok(causes)
}

fn stored(event: &Value) -> Cow<'_, Value> {
    if event["apiVersion"] == *Kind::Event.api_version() {
        Cow::Borrowed(event)
    } else {
        Cow::Owned(to_storage(event.clone()))
    }
}

fn check_always(kind: Kind, event: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let namespace = text(&event["metadata"], "namespace");
    let of = text(&event["regarding"], "namespace");
    let is_placed = match (event["eventTime"].is_null(), of) {
        (true, "") => namespace == "default",
        (true, of) => namespace == of,
        (false, "") => matches!(namespace, "default" | "kube-system"),
        (false, _) => true,
    };
    if !is_placed {
        let why = "does not match event.namespace";
        causes.push(Cause::invalid("involvedObject.namespace", json!(of), why));
    }
    if event["eventTime"].is_null() {
        return causes;
    }
    let controller = match kind {
        Kind::CoreEvent => "reportingComponent",
        _ => "reportingController",
    };
    let name = text(event, "reportingController");
    if name.is_empty() {
        causes.push(Cause::required(controller, ""));
    }
    causes.extend(metadata::check_qualified(controller, name));
    for field in ["reportingInstance", "action", "reason"] {
        let text = text(event, field);
        if text.is_empty() {
            causes.push(Cause::required(field, ""));
        }
        if text.len() > MAX_TEXT {
            causes.push(too_long(field, MAX_TEXT));
        }
    }
    if text(event, "note").len() > MAX_NOTE {
        causes.push(too_long("message", MAX_NOTE));
    }
    causes
}

fn too_long(field: &str, max: usize) -> Cause {
    Cause::invalid(field, "\"\"", &format!("can have at most {max} characters"))
}

fn check_new(event: &Value) -> Vec<Cause> {
    let mut causes = check_series(event);
    if event["eventTime"].is_null() {
        causes.push(Cause::required("eventTime", ""));
    }
    let of = text(event, "type");
    if !matches!(of, "Normal" | "Warning") {
        causes.push(Cause::invalid(
            "type",
            "\"\"",
            &format!("has invalid value: {of}"),
        ));
    }
    for (stored, core) in &NAMES[3..] {
        let value = &event[stored];
        if !value.is_null() && *value != json!({}) {
            causes.push(Cause::invalid(core, "\"\"", "needs to be unset"));
        }
    }
    causes
}

fn check_series(event: &Value) -> Vec<Cause> {
    let series = &event["series"];
    let mut causes = Vec::new();
    if series.is_null() {
        return causes;
    }
    if series["count"].as_i64() < Some(2) {
        causes.push(Cause::invalid(
            "series.count",
            "\"\"",
            "should be at least 2",
        ));
    }
    if series["lastObservedTime"].is_null() {
        causes.push(Cause::required("series.lastObservedTime", ""));
    }
    causes
}

fn check_change(new: &Value, old: &Value) -> Result<Vec<Cause>> {
    /// Immutable fields, with their names in messages. Kubernetes checks the reason twice.
    const TEXTS: [(&str, &str); 7] = [
        ("reason", "reason"),
        ("note", "message"),
        ("reason", "reason"),
        ("type", "type"),
        ("action", "action"),
        ("reportingController", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    let mut causes = Vec::new();
    if new["series"] != old["series"] {
        causes.extend(check_series(new));
    }
    let changed = TEXTS.iter().filter(|(field, _)| new[*field] != old[*field]);
    causes.extend(
        changed.map(|(field, name)| {
            Cause::invalid(name, json!(text(new, field)), "field is immutable")
        }),
    );
    let others = [
        "eventTime",
        "regarding",
        "related",
        "deprecatedSource",
        "deprecatedFirstTimestamp",
        "deprecatedLastTimestamp",
        "deprecatedCount",
    ];
    match others.into_iter().find(|field| new[*field] != old[*field]) {
        Some(field) => Err(Unknown(format!("a change of an event's {field}")).into()),
        None => Ok(causes),
    }
}
