//! Bodies in Kubernetes' form of protobuf, which client-go sends for built-in kinds, as JSON.
//!
//! The form has four bytes, and a message `Unknown` around the object (k8s.io/apimachinery
//! `pkg/runtime/serializer/protobuf`). Responses are JSON: such clients accept it as well.

use std::{collections::BTreeMap, sync::LazyLock};

use k8s_openapi::jiff::Timestamp;
use prost::{
    bytes::Buf as _,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use serde_json::{Map, Value, json};

use super::base64;

/// The messages of the objects that clients send, from the Go types: `go-clients fields` prints them, and explains the format.
const TABLE: &str = include_str!("protobuf.txt");

static MESSAGES: LazyLock<BTreeMap<&str, Message>> = LazyLock::new(|| {
    let lines = TABLE.lines();
    let lines = lines.map(|line| line.split_once(' ').unwrap_or((line, "")));
    let fields = |text: &'static str| text.split(' ').filter_map(Field::parse).collect();
    lines.map(|(name, text)| (name, fields(text))).collect()
});

/// Fields by number.
type Message = BTreeMap<u32, Field>;

struct Field {
    name: &'static str,
    /// Whether the fields of this message belong to the outer one.
    is_inline: bool,
    /// Whether the zero value differs from an absent one. Go encodes the zero value of all other fields.
    is_pointer: bool,
    of_type: &'static str,
}

impl Field {
    fn parse(text: &'static str) -> Option<(u32, Self)> {
        let (name, rest) = text.split_once('=')?;
        let (number, of_type) = rest.split_once(':')?;
        let inline = of_type.strip_prefix('~');
        let of_type = inline.unwrap_or(of_type);
        let pointer = of_type.strip_prefix('?');
        let field = Self {
            name,
            is_inline: inline.is_some(),
            is_pointer: pointer.is_some(),
            of_type: pointer.unwrap_or(of_type),
        };
        Some((number.parse().ok()?, field))
    }
}

/// Why a body cannot be decoded.
#[derive(Debug, PartialEq, Eq)]
pub enum Undecoded {
    Malformed(String),
    /// The kind is not in the table.
    NotModelled(String),
}

impl<E: std::error::Error> From<E> for Undecoded {
    fn from(error: E) -> Self {
        Self::Malformed(error.to_string())
    }
}

type Result<T> = std::result::Result<T, Undecoded>;

/// Returns the JSON of a body. It has no fields with the zero value, like the JSON of a Go client, except where Go has a pointer.
///
/// # Errors
/// The body is malformed, or its kind is not in the table.
pub fn decode(body: &[u8]) -> Result<Value> {
    let Some(envelope) = body.strip_prefix(b"k8s\0") else {
        return Err(malformed("it does not begin with k8s"));
    };
    let (mut api_version, mut kind, mut object) = (String::new(), String::new(), &[][..]);
    each(envelope, |number, wire| {
        match (number, wire) {
            (1, Wire::Bytes(names)) => each(names, |number, wire| {
                match number {
                    1 => api_version = wire.text()?,
                    2 => kind = wire.text()?,
                    _ => {}
                }
                Ok(())
            })?,
            (2, Wire::Bytes(raw)) => object = raw,
            _ => {}
        }
        Ok(())
    })?;
    let (group, version) = api_version
        .split_once('/')
        .unwrap_or(("core", &api_version));
    let package = group.strip_suffix(".k8s.io").unwrap_or(group);
    let name = match &*kind {
        // A client sends it with the version of the objects.
        "DeleteOptions" => "meta/v1.DeleteOptions".to_owned(),
        kind => format!("{package}/{version}.{kind}"),
    };
    if !MESSAGES.contains_key(&*name) {
        return Err(Undecoded::NotModelled(format!(
            "protobuf of {api_version} {kind}"
        )));
    }
    let mut object = message(&name, object)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(object.into())
}

fn malformed(why: &str) -> Undecoded {
    Undecoded::Malformed(why.to_owned())
}

/// A value on the wire (<https://protobuf.dev/programming-guides/encoding/>).
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    fn number(self) -> Result<i64> {
        match self {
            Self::Number(number) => Ok(number.cast_signed()),
            Self::Bytes(_) => Err(malformed("bytes in place of a number")),
        }
    }

    fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err(malformed("a number in place of bytes")),
        }
    }

    fn text(self) -> Result<String> {
        Ok(str::from_utf8(self.bytes()?)?.to_owned())
    }
}

/// Calls a function with the number and the value of each field of a message. Skips fixed numbers and groups, which no message of
/// the table has.
fn each<'a>(mut rest: &'a [u8], mut found: impl FnMut(u32, Wire<'a>) -> Result<()>) -> Result<()> {
    while rest.has_remaining() {
        let (number, of_type) = decode_key(&mut rest)?;
        let wire = match of_type {
            WireType::Varint => Wire::Number(decode_varint(&mut rest)?),
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut rest)?)?;
                let Some((bytes, later)) = rest.split_at_checked(length) else {
                    return Err(malformed("it is too short"));
                };
                rest = later;
                Wire::Bytes(bytes)
            }
            other => {
                skip_field(other, number, &mut rest, DecodeContext::default())?;
                continue;
            }
        };
        found(number, wire)?;
    }
    Ok(())
}

fn message(name: &str, bytes: &[u8]) -> Result<Map<String, Value>> {
    let fields = &MESSAGES[name];
    let mut object = Map::new();
    each(bytes, |number, wire| {
        let Some(field) = fields.get(&number) else {
            return Ok(());
        };
        if let Some(of_type) = field.of_type.strip_prefix('*') {
            let item = value(of_type, wire)?;
            if let Value::Array(all) = object.entry(field.name).or_insert_with(|| json!([])) {
                all.push(item);
            }
        } else if let Some(of_type) = field.of_type.strip_prefix('%') {
            let (key, value) = entry(of_type, wire.bytes()?)?;
            object.entry(field.name).or_insert_with(|| json!({}))[key] = value;
        } else {
            if object.contains_key(field.name) {
                return Err(malformed(&format!("{} occurs twice", field.name)));
            }
            let value = value(field.of_type, wire)?;
            match value {
                Value::Object(inner) if field.is_inline => object.extend(inner),
                value if field.is_pointer || !is_zero(&value) => {
                    object.insert(field.name.to_owned(), value);
                }
                _ => {}
            }
        }
        Ok(())
    })?;
    Ok(object)
}

/// Returns an entry of a map, whose keys are strings. The value may be missing, as in a Secret with an empty value.
fn entry(of_type: &str, bytes: &[u8]) -> Result<(String, Value)> {
    let (mut key, mut found) = (String::new(), None);
    each(bytes, |number, wire| {
        match number {
            1 => key = wire.text()?,
            2 => found = Some(value(of_type, wire)?),
            _ => {}
        }
        Ok(())
    })?;
    let found = found.map_or_else(|| value(of_type, Wire::Bytes(&[])), Ok)?;
    Ok((key, found))
}

fn value(of_type: &str, wire: Wire<'_>) -> Result<Value> {
    Ok(match of_type {
        "string" => wire.text()?.into(),
        "bytes" => base64(wire.bytes()?).into(),
        "int" => wire.number()?.into(),
        "bool" => (wire.number()? != 0).into(),
        "raw" => {
            let mut raw = Value::Null;
            each(wire.bytes()?, |number, wire| {
                if number == 1 {
                    raw = serde_json::from_slice(wire.bytes()?)?;
                }
                Ok(())
            })?;
            raw
        }
        "strings" => {
            let mut all = Vec::new();
            each(wire.bytes()?, |_, wire| {
                all.push(wire.text()?);
                Ok(())
            })?;
            all.into()
        }
        "quantity" => {
            let mut text = String::new();
            each(wire.bytes()?, |_, wire| {
                text = wire.text()?;
                Ok(())
            })?;
            text.into()
        }
        "intOrString" => {
            let (mut is_text, mut number, mut text) = (false, 0, String::new());
            each(wire.bytes()?, |field, wire| {
                match field {
                    1 => is_text = wire.number()? == 1,
                    2 => number = wire.number()?,
                    _ => text = wire.text()?,
                }
                Ok(())
            })?;
            if is_text { text.into() } else { number.into() }
        }
        "time" | "microTime" => time(of_type == "microTime", wire.bytes()?)?,
        name => message(name, wire.bytes()?)?.into(),
    })
}

/// Returns a time in the format of Kubernetes, or null if it is empty.
fn time(has_fraction: bool, bytes: &[u8]) -> Result<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanoseconds) = (0, 0);
    each(bytes, |number, wire| {
        match number {
            1 => seconds = wire.number()?,
            _ => nanoseconds = i32::try_from(wire.number()?)?,
        }
        Ok(())
    })?;
    let format = if has_fraction {
        "%Y-%m-%dT%H:%M:%S.%6fZ"
    } else {
        "%Y-%m-%dT%H:%M:%SZ"
    };
    let time = Timestamp::new(seconds, nanoseconds)?;
    Ok(time.strftime(format).to_string().into())
}

/// Returns whether this is the zero value of its type in Go.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let head = [number << 3 | 2, u8::try_from(content.len()).unwrap()];
        [&head[..], content].concat()
    }

    /// Returns the body of an object of this version and kind.
    fn body(api_version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
        let names = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [b"k8s\0".to_vec(), field(1, &names), field(2, object)].concat()
    }

    #[test]
    fn an_object_becomes_json_without_the_zero_values_of_go() {
        let time = [&[0x08][..], &[0xd2, 0x09], &[0x10, 0xc0, 0x84, 0x3d]].concat();
        let spec = [
            field(1, b"a"),
            vec![0x10, 0],
            field(3, b""),
            field(4, &time),
        ];
        let metadata = field(1, &[field(1, b"lock"), field(3, b"")].concat());
        let lease = [metadata, field(2, &spec.concat())].concat();
        let expected = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "lock" },
            "spec": { "holderIdentity": "a", "leaseDurationSeconds": 0, "acquireTime": null, "renewTime": "1970-01-01T00:20:34.001000Z" },
        });
        assert_eq!(
            decode(&body("coordination.k8s.io/v1", "Lease", &lease)),
            Ok(expected)
        );
        let data = field(2, &[field(1, b"password"), field(2, b"x")].concat());
        let empty = field(2, &field(1, b"empty"));
        let secret = [data, empty].concat();
        let expected = json!({ "apiVersion": "v1", "kind": "Secret", "data": { "empty": "", "password": "eA==" } });
        assert_eq!(decode(&body("v1", "Secret", &secret)), Ok(expected));
        let options = decode(&body("apps/v1", "DeleteOptions", &field(4, b"Orphan")));
        let expected = json!({ "apiVersion": "apps/v1", "kind": "DeleteOptions", "propagationPolicy": "Orphan" });
        assert_eq!(options, Ok(expected));
    }

    #[test]
    fn a_malformed_body_and_an_unknown_kind_are_errors() {
        let secret = field(2, &[field(1, b"password"), field(2, b"x")].concat());
        let whole = body("v1", "Secret", &secret);
        for end in [0, 3, whole.len() - 1] {
            let found = decode(&whole[..end]);
            assert!(matches!(found, Err(Undecoded::Malformed(_))), "{found:?}");
        }
        let twice = [secret.clone(), field(3, b"Opaque"), field(3, b"other")].concat();
        let found = decode(&body("v1", "Secret", &twice));
        assert_eq!(found, Err(malformed("type occurs twice")));
        for (version, kind) in [("v1", "Pod"), ("apps.example.com/v1", "Deployment")] {
            let unknown = Undecoded::NotModelled(format!("protobuf of {version} {kind}"));
            assert_eq!(decode(&body(version, kind, b"")), Err(unknown));
        }
    }

    #[test]
    fn the_table_contains_all_messages_that_it_mentions() {
        for (name, fields) in &*MESSAGES {
            for field in fields.values() {
                let of_type = field.of_type.trim_start_matches(['*', '%']);
                let is_known = MESSAGES.contains_key(of_type) || !of_type.contains('.');
                assert!(is_known, "{name}.{}: {of_type}", field.name);
            }
        }
    }
}
