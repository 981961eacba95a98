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
    /// Warning about repeated fields.
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
            (parse(DuplicateKeyPolicy::LastWins), Some(message(&error)))
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
    round(&mut object);
    Ok(Body { object, duplicates })
}

/// Rounds large integers, because all numbers of YAML are floating-point numbers in Go.
fn round(value: &mut Value) {
    const EXACT: u64 = 1 << 53;
    match value {
        Value::Array(all) => all.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        Value::Number(number) => {
            let is_large = |it: u64| it > EXACT;
            let large = number.as_u64().is_some_and(is_large)
                || number
                    .as_i64()
                    .is_some_and(|it| is_large(it.unsigned_abs()));
            if large && let Some(float) = number.as_f64() {
                *value = float.into();
            }
        }
        _ => {}
    }
}

fn is_duplicate(error: &Error) -> bool {
    matches!(error.without_snippet(), Error::DuplicateMappingKey { .. })
}

fn message(error: &Error) -> String {
    match error.without_snippet() {
        Error::DuplicateMappingKey { key, location } => {
            let (line, key) = (location.line(), key.as_deref().unwrap_or_default());
            format!("line {line}: key {key:?} already set in map")
        }
        _ => String::new(),
    }
}
