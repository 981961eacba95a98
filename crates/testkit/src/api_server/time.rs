//! Times with microseconds (`MicroTime`), as Go parses and prints them.

use std::sync::LazyLock;

use k8s_openapi::jiff::{SignedDuration, civil::DateTime};
use regex::Regex;
use serde_json::Value;

/// Times that `time.Parse` accepts for the layout `2006-01-02T15:04:05.000000Z07:00`.
static LAYOUT: LazyLock<Regex> = LazyLock::new(|| {
    let layout = r"(?-u)^(\d{4})-(\d\d)-(\d\d)T(\d\d?):(\d\d):(\d\d)[.,]([-+\d]\d{5})(?:Z|([-+])(\d\d):(\d\d))$";
    Regex::new(layout).unwrap()
});

/// The Gregorian calendar repeats every 400 years.
const CYCLE: i16 = 400;

/// Parses a time. Returns the text that the API server prints: in UTC, or null for Go's zero time. An offset can move the year to -1
/// or 10000. The API server prints such a year, but rejects it in a request.
pub fn micro(time: &Value) -> Result<Value, String> {
    let text = time.as_str();
    let text = text.ok_or_else(|| format!("cannot unmarshal {time} into a string"))?;
    parse(text).ok_or_else(|| format!("parsing time {text:?}"))
}

fn parse(text: &str) -> Option<Value> {
    let parts = LAYOUT.captures(text)?;
    let part = |at: usize| parts.get(at).map_or("0", |part| part.as_str());
    let number = |at: usize| part(at).parse::<i8>().ok();
    let micros: u32 = part(7).parse::<i32>().ok()?.try_into().ok()?;
    let (hours, minutes) = (number(9)?, number(10)?);
    if hours > 24 || minutes > 60 {
        return None;
    }
    let ahead = SignedDuration::from_mins(i64::from(hours) * 60 + i64::from(minutes));
    let ahead = if part(8) == "-" { -ahead } else { ahead };
    // jiff has no year 10000.
    let year = part(1).parse::<i16>().ok()? - CYCLE;
    let local = DateTime::new(
        year,
        number(2)?,
        number(3)?,
        number(4)?,
        number(5)?,
        number(6)?,
        0,
    );
    let utc = local.ok()?.checked_sub(ahead).ok()?;
    let year = utc.year() + CYCLE;
    let sign = if year < 0 { "-" } else { "" };
    let rest = utc.strftime("-%m-%dT%H:%M:%S");
    let printed = format!("{sign}{:04}{rest}.{micros:06}Z", year.abs());
    let is_zero = printed == "0001-01-01T00:00:00.000000Z";
    Some(if is_zero { Value::Null } else { printed.into() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_those_of_go() {
        for (text, printed) in [
            ("2026-01-01T00:00:01.123456Z", "2026-01-01T00:00:01.123456Z"),
            (
                "2024-02-29T01:00:00.000000+01:00",
                "2024-02-29T00:00:00.000000Z",
            ),
            (
                "2024-02-29T23:59:59.000000-00:01",
                "2024-03-01T00:00:59.000000Z",
            ),
            // The range of years, without and with an offset.
            ("0000-01-01T00:00:00.000000Z", "0000-01-01T00:00:00.000000Z"),
            ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
            (
                "0000-01-01T00:00:00.000000+00:01",
                "-0001-12-31T23:59:00.000000Z",
            ),
            (
                "9999-12-31T23:59:59.999999-24:60",
                "10000-01-02T00:59:59.999999Z",
            ),
            // The parser is lenient here.
            ("2026-01-01T5:00:00.000000Z", "2026-01-01T05:00:00.000000Z"),
            ("2026-01-01T05:00:00,000001Z", "2026-01-01T05:00:00.000001Z"),
            ("2026-01-01T05:00:00.+00001Z", "2026-01-01T05:00:00.000001Z"),
            ("2026-01-01T05:00:00.-00000Z", "2026-01-01T05:00:00.000000Z"),
        ] {
            assert_eq!(micro(&json!(text)), Ok(json!(printed)), "{text}");
        }
        for zero in [
            "0001-01-01T00:00:00.000000Z",
            "0001-01-01T01:00:00.000000+01:00",
        ] {
            assert_eq!(micro(&json!(zero)), Ok(Value::Null), "{zero}");
        }
        for refused in [
            "",
            "yesterday",
            "2026-01-01",
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:00.123Z",
            "2026-01-01T00:00:00.123456789Z",
            "2026-01-01T00:00:00.-00001Z",
            "2026-01-01T00:00:00.123456",
            "2026-01-01t00:00:00.123456z",
            "2026-01-01 00:00:00.123456Z",
            " 2026-01-01T00:00:00.123456Z",
            "2026-01-01T00:00:00.123456Z\n",
            "2026-01-01T00:00:00.123456+25:00",
            "2026-01-01T00:00:00.123456+00:61",
            "2026-01-01T00:00:00.123456+0000",
            "2026-01-01T24:00:00.123456Z",
            "2026-01-01T00:00:60.123456Z",
            "2026-1-01T00:00:00.123456Z",
            "2026-00-01T00:00:00.123456Z",
            "2026-02-29T00:00:00.123456Z",
            "10000-01-01T00:00:00.000000Z",
            "-001-01-01T00:00:00.000000Z",
        ] {
            assert!(micro(&json!(refused)).is_err(), "{refused}");
        }
        assert!(micro(&json!(5)).is_err());
    }
}
