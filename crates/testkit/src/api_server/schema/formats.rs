//! Formats of strings (`k8s.io/kube-openapi/pkg/validation/strfmt`).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{
    super::{
        Release,
        metadata::{is_label, is_subdomain},
    },
    regexp::Pattern,
};

/// Formats of strings that the API server checks, without dashes.
const STRINGS: [&str; 25] = [
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
    "",
];

/// Formats of strings since 1.34.
const NAMES: [&str; 2] = ["k8sshortname", "k8slongname"];

/// Returns whether the API server knows a format of a schema with this type.
pub fn is_known(kind: &str, format: &str, release: Release) -> bool {
    let types: &[String] = if kind.is_empty() {
        &[]
    } else {
        &[kind.to_owned()]
    };
    // Before 1.36, only formats of strings were reported.
    format.is_empty()
        || (release < Release::V1_36 && kind != "string")
        || checked(types, format, release).is_ok_and(|format| !format.is_empty())
        || NOT_MODELLED.contains(&format)
}

/// Formats that only the real API server can check. A schema with such a format is not modelled.
const NOT_MODELLED: [&str; 2] = ["uri", "email"];

/// Returns the format that is checked, which is empty for a format that the API server ignores
/// (`StripUnsupportedFormatsPostProcessorForVersion`).
pub fn checked(types: &[String], format: &str, release: Release) -> Result<String, String> {
    let normal = format.replace('-', "");
    let is_of_strings =
        STRINGS.contains(&&*normal) || (release >= Release::V1_34 && NAMES.contains(&&*normal));
    let is_checked = match types {
        // Before 1.36, the type did not matter, and formats of numbers were ignored.
        _ if release < Release::V1_36 => is_of_strings,
        [] => is_of_strings,
        [one] if one == "string" => is_of_strings,
        [one] if one == "integer" => matches!(format, "int32" | "int64"),
        [one] if one == "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if !is_checked {
        return Ok(String::new());
    }
    if NOT_MODELLED.contains(&&*normal) {
        return Err(format!("the format {format:?} of a schema"));
    }
    Ok(format.to_owned())
}

/// Returns whether the text has the format. A format of numbers is true of any text.
pub fn is_valid(format: &str, text: &str) -> bool {
    let matches = |pattern: &str| Pattern::new(pattern).is_ok_and(|pattern| pattern.is_match(text));
    match format.replace('-', "").as_str() {
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "hostname" => is_hostname(text),
        "ipv4" => ipv4(text).is_some(),
        // The parser of IPv4 in IPv6 is the same.
        "ipv6" => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "uuid" => matches("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        "uuid3" => {
            matches("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$")
        }
        "uuid4" => {
            matches("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")
        }
        "uuid5" => {
            matches("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$")
        }
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => is_credit_card(text),
        "ssn" => text.len() == 11 && matches(r"^\d{3}[- ]?\d{2}[- ]?\d{4}$"),
        "hexcolor" => matches("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
        "rgbcolor" => matches(
            r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$",
        ),
        "byte" => matches(
            r"^(?:[A-Za-z0-9+\/]{4})*(?:[A-Za-z0-9+\/]{2}==|[A-Za-z0-9+\/]{3}=|[A-Za-z0-9+\/]{4})$",
        ),
        "date" => is_date(text),
        "datetime" => is_date_time(text),
        "duration" => nanoseconds(text).is_some(),
        "k8sshortname" => text.len() <= 63 && is_label(text),
        "k8slongname" => is_subdomain(text),
        _ => true,
    }
}

fn is_hostname(text: &str) -> bool {
    let pattern = r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$";
    text.len() <= 255
        && text.split('.').all(|part| part.len() <= 63)
        && Pattern::new(pattern).is_ok_and(|pattern| pattern.is_match(text))
}

/// Parses an IPv4 address, which may have leading zeros (`ParseIPSloppy`).
fn ipv4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u8> = text
        .split('.')
        .map(|part| {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| part.trim_start_matches('0'))
        })
        .map(|part| match part? {
            "" => Some(0),
            part => part.parse().ok(),
        })
        .collect::<Option<_>>()?;
    let parts: [u8; 4] = parts.try_into().ok()?;
    Some(parts.into())
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let most = match (ipv4(address), address.parse::<Ipv6Addr>()) {
        (Some(_), _) => 32,
        (None, Ok(_)) => 128,
        (None, Err(_)) => return false,
    };
    bits.bytes().all(|b| b.is_ascii_digit()) && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

fn is_mac(text: &str) -> bool {
    let separator = if text.contains('.') {
        '.'
    } else if text.contains('-') {
        '-'
    } else {
        ':'
    };
    let width = if separator == '.' { 4 } else { 2 };
    let parts: Vec<&str> = text.split(separator).collect();
    let is_part = |part: &&str| part.len() == width && part.bytes().all(|b| b.is_ascii_hexdigit());
    matches!(parts.len() * width / 2, 6 | 8 | 20) && parts.iter().all(is_part)
}

fn sanitized(text: &str) -> String {
    let is_dropped = |c: char| matches!(c, '-' | '\t' | '\n' | '\u{c}' | '\r' | ' ');
    text.chars().filter(|c| !is_dropped(*c)).collect()
}

fn digits(text: &str) -> Option<Vec<u32>> {
    text.chars().map(|c| c.to_digit(10)).collect()
}

fn is_isbn10(text: &str) -> bool {
    let text = sanitized(text);
    let (first, last) = match (text.len(), text.is_ascii()) {
        (10, true) => text.split_at(9),
        _ => return false,
    };
    let last = match last {
        "X" => Some(10),
        last => digits(last).map(|last| last[0]),
    };
    let (Some(first), Some(last)) = (digits(first), last) else {
        return false;
    };
    let sum: u32 = first
        .iter()
        .zip(1..)
        .map(|(digit, factor)| digit * factor)
        .sum();
    (sum + 10 * last).is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let Some(digits) = digits(&sanitized(text)).filter(|digits| digits.len() == 13) else {
        return false;
    };
    let sum: u32 = digits[..12]
        .iter()
        .zip([1, 3].iter().cycle())
        .map(|(digit, factor)| digit * factor)
        .sum();
    digits[12] == (10 - sum % 10) % 10
}

fn is_credit_card(text: &str) -> bool {
    let pattern = r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\d{3})\d{11})$";
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if !Pattern::new(pattern).is_ok_and(|pattern| pattern.is_match(&digits)) {
        return false;
    }
    let doubled = |digit: u32| if digit >= 5 { digit * 2 - 9 } else { digit * 2 };
    let digits = digits
        .chars()
        .rev()
        .filter_map(|c| c.to_digit(10))
        .enumerate();
    let sum: u32 = digits
        .map(|(at, digit)| if at % 2 == 1 { doubled(digit) } else { digit })
        .sum();
    sum.is_multiple_of(10)
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else {
        return false;
    };
    let number = |text: &str, width: usize| -> Option<u16> {
        let fits = text.len() == width && text.bytes().all(|b| b.is_ascii_digit());
        fits.then(|| text.parse().ok())?
    };
    let (Some(year), Some(month), Some(day)) = (number(year, 4), number(month, 2), number(day, 2))
    else {
        return false;
    };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day)
}

fn is_date_time(text: &str) -> bool {
    let text = text.to_lowercase();
    let parts: Vec<&str> = text.split('t').collect();
    let [date, time, ..] = parts.as_slice() else {
        return false;
    };
    let pattern = r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$";
    is_date(date)
        && Pattern::new(pattern).is_ok_and(|pattern| pattern.is_match(time))
        && time[0..2] <= *"23"
        && time[3..5] <= *"59"
        && time[6..8] <= *"59"
}

/// Parses a duration of Go, such as `1h30m`, or of Scala, such as `2 days`.
pub fn nanoseconds(text: &str) -> Option<i64> {
    go_duration(text).or_else(|| {
        const UNITS: [(&[&str], i64); 8] = [
            (&["ns", "nano"], 1),
            (&["us", "µs", "micro"], 1_000),
            (&["ms", "milli"], 1_000_000),
            (&["s", "sec"], 1_000_000_000),
            (&["m", "min"], 60_000_000_000),
            (&["h", "hr", "hour"], 3_600_000_000_000),
            (&["d", "day"], 86_400_000_000_000),
            (&["w", "wk", "week"], 604_800_000_000_000),
        ];
        let pattern = Pattern::new(r"[0-9]+\s*[A-Za-zµ]+").ok()?;
        let mut sum = None;
        for found in pattern.matches(text) {
            let unit = found.trim_start_matches(|c: char| c.is_ascii_digit());
            let factor: i64 = found[..found.len() - unit.len()].parse().ok()?;
            let unit = unit.trim().to_lowercase();
            for (variants, nanoseconds) in UNITS {
                let last = variants.last().copied().unwrap_or_default();
                let count = variants.iter().filter(|variant| **variant == unit).count();
                let count = count + usize::from(unit.starts_with(last) && last != unit);
                for _ in 0..count {
                    sum = Some(
                        sum.unwrap_or(0_i64)
                            .wrapping_add(factor.wrapping_mul(nanoseconds)),
                    );
                }
            }
        }
        sum
    })
}

/// Parses a duration like `time.ParseDuration`.
fn go_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut sum: i128 = 0;
    while !rest.is_empty() {
        let number = rest.len()
            - rest
                .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
                .len();
        let (value, after) = rest.split_at(number);
        let unit = after.len()
            - after
                .trim_start_matches(|c: char| !c.is_ascii_digit() && c != '.')
                .len();
        let (unit, after) = after.split_at(unit);
        let factor: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let whole: i128 = if whole.is_empty() {
            0
        } else {
            whole.parse().ok()?
        };
        let fraction = &fraction[..fraction.len().min(18)];
        let part: i128 = if fraction.is_empty() {
            0
        } else {
            fraction.parse().ok()?
        };
        let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        sum += whole * factor + part * factor / scale;
        if sum > i128::from(i64::MAX) {
            return None;
        }
        rest = after;
    }
    i64::try_from(if negative { -sum } else { sum }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_checked_like_in_go() {
        for (format, good, bad) in [
            ("ipv4", "010.1.2.3", "1.2.3"),
            ("ipv6", "::1", "1.2.3.4"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("mac", "01:23:45:67:89:ab", "01:23:45:67:89"),
            ("uuid", "01234567-89ab-cdef-0123-456789abcdef", "01234567"),
            ("isbn", "0321751043", "0321751044"),
            ("isbn13", "978-0321751041", "978-0321751042"),
            ("creditcard", "4111 1111 1111 1111", "4111 1111 1111 1112"),
            ("ssn", "111-11-1111", "111-11-111"),
            ("hexcolor", "#FFF", "#FF"),
            ("rgbcolor", "rgb(1, 2, 3)", "rgb(1, 2, 300)"),
            ("byte", "YQ==", "YQ="),
            ("date", "2024-02-29", "2023-02-29"),
            ("date-time", "2024-02-29T12:00:00Z", "2024-02-29 12:00:00"),
            ("duration", "1h30m", "1x"),
            ("duration", "2 days", ""),
            ("bsonobjectid", "0123456789abcdef01234567", "0123"),
            ("hostname", "example.com", "-a"),
            ("k8s-short-name", "a-b", "a.b"),
            ("k8s-long-name", "a.b", "A"),
        ] {
            assert!(is_valid(format, good), "{format}: {good}");
            assert!(!is_valid(format, bad), "{format}: {bad}");
        }
        assert_eq!(nanoseconds("1.5s"), Some(1_500_000_000));
        assert_eq!(nanoseconds("2 days"), Some(2 * 86_400_000_000_000));
    }
}
