//! Fields of objects.

use serde_json::Value;

/// Returns the string, or an empty string if the value is not a string.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the UID of the controlling owner.
pub fn owner(object: &Value) -> &str {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let controller = owners
        .into_iter()
        .flatten()
        .find(|owner| owner["controller"] == true);
    controller
        .map(|owner| text(&owner["uid"]))
        .unwrap_or_default()
}

/// Returns the status and the reason of a condition.
pub fn condition<'a>(object: &'a Value, of_type: &str) -> (&'a str, &'a str) {
    let all = object["status"]["conditions"].as_array();
    let one = all
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == of_type);
    one.map(|condition| (text(&condition["status"]), text(&condition["reason"])))
        .unwrap_or_default()
}
