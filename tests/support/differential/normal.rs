//! Normalization of values that differ between the sides. UIDs and versions are numbered in the order of their first
//! occurrence. Timestamps are reduced to their presence.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Groups whose objects have no managers in memory: reviews, and objects that these tests put into the store.
const UNMANAGED: [&str; 4] = [
    "apiextensions.k8s.io/",
    "storage.k8s.io/",
    "authentication.k8s.io/",
    "authorization.k8s.io/",
];

/// Numbers of one side's UIDs and versions.
#[derive(Default)]
pub struct Names {
    uids: BTreeMap<String, usize>,
    versions: BTreeMap<String, usize>,
    /// Whether the managers of fields are not compared.
    pub hides_managers: bool,
}

impl Names {
    /// Returns the normalized response.
    pub fn normal(&mut self, mut answer: Value) -> Value {
        if answer["type"] == "BOOKMARK" {
            let annotations = &answer["object"]["metadata"]["annotations"];
            return json!({ "type": "BOOKMARK", "annotations": annotations });
        }
        if answer["kind"]
            .as_str()
            .is_some_and(|kind| kind.ends_with("List"))
        {
            let metadata = answer["metadata"].as_object_mut().unwrap();
            metadata.remove("resourceVersion");
            let more = metadata.remove("continue").is_some_and(|token| token != "");
            metadata.insert("more".to_owned(), more.into());
        }
        if answer["kind"]
            .as_str()
            .is_some_and(|kind| kind.ends_with("Review"))
        {
            review(&mut answer);
        }
        self.walk(&mut answer);
        if answer["kind"] == "Status" {
            self.status(&mut answer);
        }
        answer
    }

    fn walk(&mut self, value: &mut Value) {
        match value {
            Value::Array(all) => all.iter_mut().for_each(|value| self.walk(value)),
            Value::Object(fields) => {
                let is_namespace =
                    !fields.get("labels").unwrap_or(&Value::Null)["kubernetes.io/metadata.name"]
                        .is_null();
                let entries = fields.get("managedFields").and_then(Value::as_array);
                let is_unmanaged = |entry: &Value| {
                    let version = entry["apiVersion"].as_str().unwrap_or_default();
                    UNMANAGED.iter().any(|group| version.starts_with(group))
                };
                if self.hides_managers
                    || is_namespace
                    || entries.into_iter().flatten().any(is_unmanaged)
                {
                    fields.remove("managedFields");
                }
                if let Some(Value::Array(entries)) = fields.get_mut("managedFields") {
                    for time in entries.iter_mut().filter_map(|entry| entry.get_mut("time")) {
                        *time = json!("some time");
                    }
                    // Their order follows from the times.
                    entries.sort_by_key(Value::to_string);
                }
                // Older API servers return a null.
                fields.retain(|field, value| field != "creationTimestamp" || !value.is_null());
                for (field, value) in fields.iter_mut() {
                    match (field.as_str(), &mut *value) {
                        // Also in the labels of a Job's pods.
                        (
                            "uid" | "controller-uid" | "batch.kubernetes.io/controller-uid",
                            Value::String(uid),
                        ) if uid.len() == 36 => {
                            let next = self.uids.len();
                            *uid = format!("uid {}", self.uids.entry(uid.clone()).or_insert(next));
                        }
                        ("resourceVersion", Value::String(version)) => {
                            let next = self.versions.len();
                            *version = format!(
                                "version {}",
                                self.versions.entry(version.clone()).or_insert(next)
                            );
                        }
                        ("creationTimestamp" | "deletionTimestamp", value @ Value::String(_)) => {
                            *value = json!("some time");
                        }
                        // The address of a Service is any free one.
                        ("clusterIP", value @ Value::String(_)) => *value = json!("some address"),
                        ("clusterIPs", value @ Value::Array(_)) => *value = json!(["some address"]),
                        (_, value) => self.walk(value),
                    }
                }
            }
            _ => {}
        }
    }

    fn status(&self, status: &mut Value) {
        let parser = [
            "cannot be handled as a",
            "continue key is not valid",
            "couldn't get version/kind",
            "error decoding patch",
            "JSON",
            "patch:",
            "unable to convert unstructured object",
        ];
        let mut message = status["message"].as_str().unwrap_or_default().to_owned();
        let of_parser = parser.into_iter().any(|words| message.contains(words));
        for (uid, number) in &self.uids {
            message = message.replace(uid, &format!("uid {number}"));
        }
        for (version, number) in self.versions.iter().rev() {
            message = message.replace(&format!("({version})"), &format!("(version {number})"));
        }
        let last = message.rsplit_once("object meta: ");
        if let Some((words, number)) =
            last.and_then(|(words, it)| Some((words, self.versions.get(it)?)))
        {
            message = format!("{words}object meta: version {number}");
        }
        // The API server finds errors of types in any order, and none after the first unknown field of a map.
        let typed = message.split_once("): ");
        if let Some((object, errors)) = typed
            && (errors.starts_with("errors:") || errors.ends_with("not declared in schema"))
        {
            message = format!("{object}): several errors");
        }
        let causes = status["details"]["causes"].as_array_mut();
        let several = causes.as_ref().is_some_and(|causes| causes.len() > 1);
        if let Some(causes) = causes {
            for cause in &mut *causes {
                let mut message = cause["message"].as_str().unwrap_or_default().to_owned();
                for (uid, number) in &self.uids {
                    message = message.replace(uid, &format!("uid {number}"));
                }
                cause["message"] = message.into();
            }
            // The API server returns causes in any order.
            causes.sort_by_key(Value::to_string);
            if of_parser {
                for cause in causes {
                    cause["message"] = json!("of the parser");
                }
            }
        }
        status["message"] = match (of_parser, several) {
            // Parser errors are specific to the implementation.
            (true, _) => json!("of the parser"),
            (false, true) => json!("several causes"),
            (false, false) => message.into(),
        };
    }
}

/// Removes the fields of a review that are specific to a side: the token, its id, and the reason of the decision. No client
/// depends on them.
fn review(review: &mut Value) {
    for (part, fields) in [
        ("/spec", &["token", "extra"][..]),
        ("/status", &["reason", "error"]),
        ("/status/user", &["extra"]),
    ] {
        if let Some(part) = review.pointer_mut(part).and_then(Value::as_object_mut) {
            part.retain(|field, _| !fields.contains(&field.as_str()));
        }
    }
}
