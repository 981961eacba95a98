//! OTLP exports, from protobuf to the JSON of the OpenTelemetry Collector's file exporter
//! (<https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>).

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

/// A field of a message: its number, its name in JSON, and its type.
type Field = (u64, &'static str, Type);

#[derive(Clone, Copy)]
enum Type {
    Text,
    /// Written as hex digits.
    Id,
    Number,
    Flag,
    /// A signed 64-bit integer, which JSON writes as a string.
    Integer,
    Double,
    /// A `fixed64`, which JSON writes as a string.
    Time,
    One(&'static Message),
    Many(&'static Message),
}

/// The known fields of a message. Other fields are ignored.
struct Message(&'static [Field]);

use Type::{Double, Flag, Id, Integer, Many, Number, One, Text, Time};

static TRACES: Message = Message(&[(1, "resourceSpans", Many(&RESOURCE_SPANS))]);
static RESOURCE_SPANS: Message = Message(&[
    (1, "resource", One(&RESOURCE)),
    (2, "scopeSpans", Many(&SCOPE_SPANS)),
]);
static SCOPE_SPANS: Message = Message(&[(1, "scope", One(&SCOPE)), (2, "spans", Many(&SPAN))]);
static LOGS: Message = Message(&[(1, "resourceLogs", Many(&RESOURCE_LOGS))]);
static RESOURCE_LOGS: Message = Message(&[
    (1, "resource", One(&RESOURCE)),
    (2, "scopeLogs", Many(&SCOPE_LOGS)),
]);
static SCOPE_LOGS: Message = Message(&[
    (1, "scope", One(&SCOPE)),
    (2, "logRecords", Many(&LOG_RECORD)),
]);
static RESOURCE: Message = Message(&[(1, "attributes", Many(&KEY_VALUE))]);
static SCOPE: Message = Message(&[
    (1, "name", Text),
    (2, "version", Text),
    (3, "attributes", Many(&KEY_VALUE)),
]);
static SPAN: Message = Message(&[
    (1, "traceId", Id),
    (2, "spanId", Id),
    (4, "parentSpanId", Id),
    (5, "name", Text),
    (6, "kind", Number),
    (7, "startTimeUnixNano", Time),
    (8, "endTimeUnixNano", Time),
    (9, "attributes", Many(&KEY_VALUE)),
    (11, "events", Many(&EVENT)),
    (13, "links", Many(&LINK)),
    (15, "status", One(&STATUS)),
]);
static EVENT: Message = Message(&[
    (1, "timeUnixNano", Time),
    (2, "name", Text),
    (3, "attributes", Many(&KEY_VALUE)),
]);
static LINK: Message = Message(&[
    (1, "traceId", Id),
    (2, "spanId", Id),
    (4, "attributes", Many(&KEY_VALUE)),
]);
static STATUS: Message = Message(&[(2, "message", Text), (3, "code", Number)]);
static LOG_RECORD: Message = Message(&[
    (1, "timeUnixNano", Time),
    (2, "severityNumber", Number),
    (3, "severityText", Text),
    (5, "body", One(&ANY_VALUE)),
    (6, "attributes", Many(&KEY_VALUE)),
    (9, "traceId", Id),
    (10, "spanId", Id),
    (11, "observedTimeUnixNano", Time),
]);
static KEY_VALUE: Message = Message(&[(1, "key", Text), (2, "value", One(&ANY_VALUE))]);
static ANY_VALUE: Message = Message(&[
    (1, "stringValue", Text),
    (2, "boolValue", Flag),
    (3, "intValue", Integer),
    (4, "doubleValue", Double),
    (5, "arrayValue", One(&ARRAY_VALUE)),
    (6, "kvlistValue", One(&KEY_VALUES)),
]);
static ARRAY_VALUE: Message = Message(&[(1, "values", Many(&ANY_VALUE))]);
static KEY_VALUES: Message = Message(&[(1, "values", Many(&KEY_VALUE))]);

/// Returns an export of traces as JSON, or nothing if it is malformed.
pub fn traces(export: &[u8]) -> Option<Value> {
    message(&TRACES, export)
}

/// Returns an export of logs as JSON, or nothing if it is malformed.
pub fn logs(export: &[u8]) -> Option<Value> {
    message(&LOGS, export)
}

/// A value on the wire (<https://protobuf.dev/programming-guides/encoding/>).
enum Wire<'a> {
    /// A `varint`, a `fixed32` or a `fixed64`.
    Number(u64),
    Bytes(&'a [u8]),
}

fn message(Message(fields): &Message, mut rest: &[u8]) -> Option<Value> {
    let mut found = Map::new();
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        let value = match tag & 7 {
            0 => Wire::Number(varint(&mut rest)?),
            1 => Wire::Number(u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?)),
            2 => {
                let length = varint(&mut rest)?.try_into().ok()?;
                Wire::Bytes(take(&mut rest, length)?)
            }
            5 => Wire::Number(u32::from_le_bytes(take(&mut rest, 4)?.try_into().ok()?).into()),
            _ => return None,
        };
        let Some((_, name, kind)) = fields.iter().find(|(number, ..)| *number == tag >> 3) else {
            continue;
        };
        let value = match (kind, value) {
            (Text, Wire::Bytes(bytes)) => json!(str::from_utf8(bytes).ok()?),
            (Id, Wire::Bytes(bytes)) => json!(hex(bytes)),
            (Number, Wire::Number(number)) => json!(number),
            (Flag, Wire::Number(number)) => json!(number != 0),
            (Integer, Wire::Number(number)) => json!(number.cast_signed().to_string()),
            (Double, Wire::Number(number)) => json!(f64::from_bits(number)),
            (Time, Wire::Number(number)) => json!(number.to_string()),
            (One(kind) | Many(kind), Wire::Bytes(bytes)) => message(kind, bytes)?,
            _ => return None,
        };
        match kind {
            Many(_) => {
                let all = found.entry(*name).or_insert_with(|| json!([]));
                all.as_array_mut()?.push(value);
            }
            _ => _ = found.insert((*name).to_owned(), value),
        }
    }
    Some(found.into())
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::{logs, traces};
    use serde_json::json;

    /// Returns a field with bytes.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let head = [number << 3 | 2, u8::try_from(content.len()).unwrap()];
        [&head[..], content].concat()
    }

    #[test]
    fn an_export_becomes_json() {
        // -1, and an unknown field that is ignored.
        let number = [&[0x18][..], &[0xff; 9], &[1], &field(12, b"x")].concat();
        let attribute = [field(1, b"n"), field(2, &number)].concat();
        let time = [&[0x39][..], &7_u64.to_le_bytes()].concat();
        let span = [
            field(1, &[0xab, 1]),
            field(5, b"reconcile"),
            time,
            field(9, &attribute),
            field(9, &attribute),
        ]
        .concat();
        let export = field(1, &field(2, &field(2, &span)));
        let one = json!({ "key": "n", "value": { "intValue": "-1" } });
        let span = json!({ "traceId": "ab01", "name": "reconcile", "startTimeUnixNano": "7", "attributes": [one, one] });
        let expected = json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": [span] }] }] });
        assert_eq!(traces(&export), Some(expected));
        let record = [field(5, &field(1, b"done")), vec![0x10, 9]].concat();
        let record_json = json!({ "body": { "stringValue": "done" }, "severityNumber": 9 });
        let expected =
            json!({ "resourceLogs": [{ "scopeLogs": [{ "logRecords": [record_json] }] }] });
        assert_eq!(
            logs(&field(1, &field(2, &field(2, &record)))),
            Some(expected)
        );
    }

    #[test]
    fn a_malformed_export_is_none() {
        let export = field(1, &field(2, &field(2, &field(5, b"reconcile"))));
        for end in 1..export.len() {
            assert_eq!(traces(&export[..end]), None, "{end}");
        }
        assert_eq!(traces(&[0xff; 20]), None);
    }
}
