//! Durations in Go's format.

const UNITS: [&str; 8] = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"];

/// Returns whether a number of the text may be too large for a duration.
pub fn may_overflow(text: &str) -> bool {
    let digits = if text.contains('h') { 6 } else { 8 };
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    numbers.any(|number| number.len() > digits)
}

/// Returns the error of Go's `time.ParseDuration` for a text, except for an overflow.
pub fn error(text: &str) -> Option<String> {
    let invalid = || Some(format!("time: invalid duration {text:?}"));
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return None;
    }
    if rest.is_empty() {
        return invalid();
    }
    while !rest.is_empty() {
        let number = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let fraction = number.strip_prefix('.');
        let digits = |c: char| c.is_ascii_digit();
        let end = fraction.map_or(number, |fraction| fraction.trim_start_matches(digits));
        let number = &rest[..rest.len() - end.len()];
        if !number.contains(digits) {
            return invalid();
        }
        let next = end.find(|c: char| c == '.' || c.is_ascii_digit());
        let (unit, after) = end.split_at(next.unwrap_or(end.len()));
        if unit.is_empty() {
            return Some(format!("time: missing unit in duration {text:?}"));
        }
        if !UNITS.contains(&unit) {
            return Some(format!("time: unknown unit {unit:?} in duration {text:?}"));
        }
        rest = after;
    }
    None
}
