//! The body of an apply: YAML or JSON.

use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, Error};

use super::super::{
    schema::store_numbers,
    status::{Refusal, Result},
};

/// A parsed body.
pub struct Body {
    pub object: Value,
    /// What a strict parser says of fields that are there twice.
    pub duplicates: Option<String>,
}

/// Parses a body. As in the API server, whole numbers lose their fraction.
pub fn read(body: &[u8]) -> Result<Body> {
    let parse = |duplicate_keys| {
        let options = serde_saphyr::options! { duplicate_keys: duplicate_keys };
        serde_saphyr::from_slice_with_options::<Value>(body, options)
    };
    let (parsed, duplicates) = match parse(DuplicateKeyPolicy::Error) {
        Err(error) if is_duplicate(&error) => {
            (parse(DuplicateKeyPolicy::LastWins), Some(told(&error)))
        }
        parsed => (parsed, None),
    };
    let unreadable = |words: &str| Refusal::bad_request(format!("error decoding YAML: {words}"));
    let mut object = parsed.map_err(|error| unreadable(&error.to_string()))?;
    if object.is_null() {
        object = Value::Object(serde_json::Map::new());
    }
    if !object.is_object() {
        return Err(unreadable("json: cannot unmarshal into a map"));
    }
    store_numbers(&mut object);
    Ok(Body { object, duplicates })
}

fn is_duplicate(error: &Error) -> bool {
    matches!(error.without_snippet(), Error::DuplicateMappingKey { .. })
}

fn told(error: &Error) -> String {
    match error.without_snippet() {
        Error::DuplicateMappingKey { key, location } => {
            let (line, key) = (location.line(), key.as_deref().unwrap_or_default());
            format!("line {line}: key {key:?} already set in map")
        }
        _ => String::new(),
    }
}
