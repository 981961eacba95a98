//! Validation of metadata.

use serde_json::Value;

use super::{Kind, status::Cause};

/// Format of a label's value and of the last part of a qualified name.
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

pub fn finalizers(object: &Value) -> Vec<&str> {
    texts(&object["metadata"]["finalizers"]).collect()
}

pub fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Validates metadata. With `strict`, the name must be a DNS subdomain; otherwise any name is valid that a path can contain.
pub fn check(metadata: &Value, strict: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let Some(prefix) = metadata["generateName"].as_str()
        && !prefix.is_empty()
        && strict
    {
        causes.extend(check_prefix(prefix));
    }
    match metadata["name"].as_str() {
        None | Some("") => {
            causes.push(Cause::required(
                "metadata.name",
                "name or generateName is required",
            ));
        }
        Some(name) if strict => causes.extend(check_subdomain("metadata.name", name)),
        Some(_) => {}
    }
    causes.extend(check_maps(metadata));
    for name in texts(&metadata["finalizers"]) {
        causes.extend(check_qualified("metadata.finalizers", name));
    }
    let has = |name| texts(&metadata["finalizers"]).any(|it| it == name);
    if has("orphan") && has("foregroundDeletion") {
        causes.push(Cause::invalid(
            "metadata.finalizers",
            &metadata["finalizers"],
            "finalizer orphan and foregroundDeletion cannot be both set",
        ));
    }
    causes
}

/// Validates metadata that replaces `old`.
pub fn check_update(new: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if !old["deletionTimestamp"].is_null() {
        let mut added: Vec<_> = texts(&new["finalizers"])
            .filter(|name| !texts(&old["finalizers"]).any(|it| it == *name))
            .collect();
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            causes.push(Cause {
                field: "metadata.finalizers".to_owned(),
                reason: "FieldValueForbidden",
                message: format!(
                    "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
                ),
            });
        }
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        if new[field] != old[field] {
            causes.push(Cause::invalid(
                &format!("metadata.{field}"),
                &new[field],
                "field is immutable",
            ));
        }
    }
    causes.extend(check_maps(new));
    causes
}

/// Validates annotations (`ValidateAnnotations`), except for their size.
pub fn check_annotations(field: &str, annotations: &Value) -> Vec<Cause> {
    let all = annotations.as_object().into_iter().flatten();
    let causes = all.flat_map(|(name, _)| {
        let causes = check_qualified(field, &name.to_lowercase()).into_iter();
        causes.map(move |cause| {
            let words = cause.message.split_once(": ");
            let words = words.and_then(|(_, rest)| rest.split_once(": "));
            let why = words.map_or("", |(_, why)| why).to_owned();
            Cause::invalid(field, Value::from(name.as_str()), &why)
        })
    });
    causes.collect()
}

fn check_maps(metadata: &Value) -> Vec<Cause> {
    let mut causes = check_labels("metadata.labels", &metadata["labels"]);
    causes.extend(check_annotations(
        "metadata.annotations",
        &metadata["annotations"],
    ));
    let mut controller: Option<String> = None;
    for owner in metadata["ownerReferences"].as_array().into_iter().flatten() {
        for (field, why) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                causes.push(Cause::invalid(
                    &format!("metadata.ownerReferences.{field}"),
                    "\"\"",
                    why,
                ));
            }
        }
        if owner["controller"] == true {
            let text = |field: &str| owner[field].as_str().unwrap_or_default().to_owned();
            let named = format!("{}/{}", text("kind"), text("name"));
            if let Some(first) = &controller {
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {named}"
                );
                causes.push(Cause::invalid(
                    "metadata.ownerReferences",
                    owners_in_go(&metadata["ownerReferences"]),
                    &why,
                ));
            } else {
                controller = Some(named);
            }
        }
    }
    causes
}

pub fn check_labels(field: &str, labels: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (name, value) in labels.as_object().into_iter().flatten() {
        causes.extend(check_qualified(field, name));
        let value = value.as_str().unwrap_or_default();
        causes.extend(check_label_value(field, value));
    }
    causes
}

pub fn check_label_value(field: &str, value: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut invalid = |why: &str| causes.push(Cause::invalid(field, format!("{value:?}"), why));
    if value.len() > 63 {
        invalid("must be no more than 63 bytes");
    }
    if !value.is_empty() && !is_qualified_part(value) {
        invalid(&format!(
            "a valid label must be an empty string or {} (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
             validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            QUALIFIED.trim_start_matches("must ")
        ));
    }
    causes
}

fn is_qualified_part(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    edge(text.chars().next())
        && edge(text.chars().last())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

pub fn check_qualified(field: &str, name: &str) -> Vec<Cause> {
    let (prefix, last) = name
        .split_once('/')
        .map_or((None, name), |(prefix, last)| (Some(prefix), last));
    let mut causes = Vec::new();
    let invalid = |why: &str| Cause::invalid(field, format!("{name:?}"), why);
    if last.contains('/') {
        return vec![invalid(&format!(
            "a valid label key {QUALIFIED} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
             '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ))];
    }
    match prefix {
        Some("") => causes.push(invalid("prefix part must be non-empty")),
        Some(prefix) => causes.extend(
            wrong_subdomain(prefix)
                .iter()
                .map(|why| invalid(&format!("prefix part {why}"))),
        ),
        None => {}
    }
    if last.is_empty() {
        causes.push(invalid("name part must be non-empty"));
    }
    if last.len() > 63 {
        causes.push(invalid("name part must be no more than 63 bytes"));
    }
    if !is_qualified_part(last) {
        causes.push(invalid(&format!(
            "name part {QUALIFIED} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
             '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        )));
    }
    causes
}

/// Returns whether this is a DNS-1123 subdomain.
pub fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_label)
}

pub fn is_label(label: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !label.is_empty()
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.chars().all(inner)
}

/// Validates a DNS-1123 label.
pub fn check_label(field: &str, name: &str) -> Vec<Cause> {
    let wrong = wrong_label(name).into_iter();
    wrong
        .map(|why| Cause::invalid(field, format!("{name:?}"), why))
        .collect()
}

/// Returns the errors of a DNS-1123 label (`IsDNS1123Label`).
pub fn wrong_label(name: &str) -> Vec<&'static str> {
    let mut wrong = Vec::new();
    if name.len() > 63 {
        wrong.push("must be no more than 63 characters");
    }
    if name.contains('.') && name.split('.').all(is_label) {
        wrong.push("must not contain dots");
    } else if !is_label(name) {
        wrong.push(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
             with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        );
    }
    wrong
}

/// Validates a prefix of DNS subdomains, which may end with a hyphen (`maskTrailingDash`).
fn check_prefix(prefix: &str) -> Vec<Cause> {
    let field = "metadata.generateName";
    let masked = match prefix.strip_suffix('-') {
        Some(rest) if !rest.is_empty() && rest.is_ascii() => {
            format!("{}a", &rest[..rest.len() - 1])
        }
        _ => prefix.to_owned(),
    };
    let mut causes = check_subdomain(field, &masked);
    for cause in &mut causes {
        cause.message = cause
            .message
            .replacen(&format!("{masked:?}"), &format!("{prefix:?}"), 1);
    }
    causes
}

pub fn check_subdomain(field: &str, name: &str) -> Vec<Cause> {
    let wrong = wrong_subdomain(name).into_iter();
    wrong
        .map(|why| Cause::invalid(field, format!("{name:?}"), why))
        .collect()
}

/// Returns the errors of a DNS-1123 subdomain (`IsDNS1123Subdomain`).
fn wrong_subdomain(name: &str) -> Vec<&'static str> {
    let mut wrong = Vec::new();
    if name.len() > 253 {
        wrong.push("must be no more than 253 bytes");
    }
    if !name.split('.').all(is_label) {
        wrong.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
             and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        );
    }
    wrong
}

/// Returns whether names of this kind must be DNS subdomains.
pub fn is_strict(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::CustomResourceDefinition | Kind::Namespace | Kind::Service
    )
}

/// Formats owner references with Go's order of fields.
fn owners_in_go(owners: &Value) -> String {
    const FIELDS: [&str; 6] = [
        "apiVersion",
        "kind",
        "name",
        "uid",
        "controller",
        "blockOwnerDeletion",
    ];
    let owner = |owner: &Value| {
        let fields = FIELDS.into_iter().filter(|field| !owner[*field].is_null());
        let fields = fields.map(|field| format!("\"{field}\":{}", owner[field]));
        format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
    };
    let owners = owners.as_array().into_iter().flatten().map(owner);
    format!("[{}]", owners.collect::<Vec<_>>().join(","))
}
