//! What is the same in both, though it is not equal: UIDs and versions by the order in which they are first told, times by
//! whether they are there.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The names that one side's UIDs and versions have.
#[derive(Default)]
pub struct Names {
    uids: BTreeMap<String, usize>,
    versions: BTreeMap<String, usize>,
}

impl Names {
    /// The answer in words that both sides have.
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
                fields.remove("managedFields");
                // What an Event has of an older API.
                fields.retain(|field, _| !field.starts_with("deprecated"));
                // Older API servers say that there is none.
                fields.retain(|field, value| field != "creationTimestamp" || !value.is_null());
                for (field, value) in fields.iter_mut() {
                    match (field.as_str(), &mut *value) {
                        ("uid", Value::String(uid)) if uid.len() == 36 => {
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
                        // A Service's, which is any that is free.
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
            // Go tells them in any order.
            causes.sort_by_key(Value::to_string);
            if of_parser {
                for cause in causes {
                    cause["message"] = json!("of the parser");
                }
            }
        }
        status["message"] = match (of_parser, several) {
            // What a parser says is its own affair.
            (true, _) => json!("of the parser"),
            (false, true) => json!("several causes"),
            (false, false) => message.into(),
        };
    }
}

/// What is each side's own in a review: a token, its number, and by which role or why not, by which nobody goes.
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
