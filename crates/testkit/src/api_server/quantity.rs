//! Quantities of the built-in kinds (`apimachinery/pkg/api/resource`): the API server stores and returns their canonical form.

use std::cmp::Ordering;

use serde_json::Value;

use super::{
    Kind,
    fields::types::{self, Ref},
    request::Unknown,
    status::{Refusal, Result},
    strategy::unreadable,
};

/// Smallest power of ten of a quantity.
const NANO: i64 = -9;
/// Smallest power of ten in a list of resources.
const MILLI: i64 = -3;
/// Largest number of digits that Go parses without big numbers.
const FAST_DIGITS: i64 = 18;
const DECIMAL: [(&str, i64); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const LETTERS: &str = "eEinumkKMGTP";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Exponent,
    Decimal,
    Binary,
}

/// A parsed quantity: `mantissa` times ten to the power of `scale`.
#[derive(Debug)]
pub struct Quantity {
    mantissa: i128,
    scale: i64,
    format: Format,
    /// The text itself, if Go takes it for canonical.
    text: Option<String>,
}

/// Why a text is no quantity.
enum Failure {
    Wrong(&'static str),
    /// The numbers are too large for this model.
    TooLarge,
}

const WRONG_FORM: Failure = Failure::Wrong(
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
);
const WRONG_NUMBER: Failure = Failure::Wrong("unable to parse numeric part of quantity");
const WRONG_SUFFIX: Failure = Failure::Wrong("unable to parse quantity's suffix");

/// Replaces all quantities in the spec of a workload by their canonical form.
pub fn read(kind: Kind, object: &mut Value) -> Result<()> {
    match (spec_of(kind), object.get_mut("spec")) {
        (Some(of), Some(spec)) => walk(of, spec, &mut |value, is_listed| {
            // The defaults round up a list of resources.
            let scale = if is_listed { MILLI } else { NANO };
            if is_listed || !value.is_null() {
                *value = canonical(kind, value, scale)?.into();
            }
            Ok(())
        }),
        _ => Ok(()),
    }
}

/// Returns whether two specs are the same for the generation: quantities are compared by their numbers.
pub fn is_same(kind: Kind, new: &Value, old: &Value) -> bool {
    let numbers = |spec: &Value| {
        let mut spec = spec.clone();
        let all = spec_of(kind).map(|of| {
            walk(of, &mut spec, &mut |value, _| {
                if let Some(quantity) = Quantity::of(value) {
                    let (mantissa, scale) = quantity.reduced();
                    *value = format!("{mantissa}e{scale}").into();
                }
                Ok(())
            })
        });
        all.is_some_and(|all| all.is_ok()).then_some(spec)
    };
    new == old || numbers(new).is_some_and(|new| numbers(old) == Some(new))
}

/// Returns the type of the spec of a workload.
fn spec_of(kind: Kind) -> Option<&'static Ref> {
    if !matches!(kind, Kind::Deployment | Kind::Job) {
        return None;
    }
    let whole = types::built_in(&kind.api_version(), kind.info().kind)?;
    whole.get().map.as_ref()?.field("spec")
}

/// Calls `then` with each quantity, and with whether it is in a list of resources.
fn walk(
    of: &Ref,
    value: &mut Value,
    then: &mut impl FnMut(&mut Value, bool) -> Result<()>,
) -> Result<()> {
    match (value, &of.get().map, &of.get().list) {
        (Value::Object(fields), Some(map), _) => {
            for (name, value) in fields {
                match map.field(name) {
                    Some(of) if of.get().is_quantity() => {
                        then(value, !map.fields.contains_key(name))?;
                    }
                    Some(of) => walk(of, value, then)?,
                    None => {}
                }
            }
            Ok(())
        }
        (Value::Array(items), _, Some(list)) => items
            .iter_mut()
            .try_for_each(|item| walk(&list.of, item, then)),
        _ => Ok(()),
    }
}

fn canonical(kind: Kind, value: &Value, scale: i64) -> Result<String> {
    let text = match value {
        Value::Null => "0".to_owned(),
        // Go trims the text as it is in JSON, where these characters are escaped.
        Value::String(text) => {
            let is_space = |c: char| c.is_whitespace() && !c.is_ascii_control();
            text.trim_matches(is_space).to_owned()
        }
        // Go reads the text of the number, which is lost here: `1.0` may have been `1e0`, and `1.5` may have been `1.500`, which are
        // formatted differently.
        Value::Number(number) if number.is_f64() => {
            let text = number.to_string();
            let is_large = number.as_f64().is_none_or(|number| number.abs() >= 1.0);
            if is_large || text.contains('e') || text.ends_with(".0") {
                return Err(Unknown(format!("the quantity {text} as a number")).into());
            }
            text
        }
        other => other.to_string(),
    };
    match Quantity::parse(&text) {
        // Go has no suffix for these, and returns another number.
        Ok(it) if it.format == Format::Decimal && it.text.is_none() && it.reduced().1 > 20 => {
            Err(Unknown(format!("the quantity {text}")).into())
        }
        Ok(quantity) => Ok(quantity.rounded_up(scale).to_string()),
        Err(Failure::Wrong(words)) => Err(unreadable(kind, words)),
        Err(Failure::TooLarge) => Err(Refusal::from(Unknown(format!("the quantity {text}")))),
    }
}

fn power(base: i128, exponent: i64) -> Option<i128> {
    base.checked_pow(u32::try_from(exponent).ok()?)
}

/// Divides by a power of ten, and rounds away from zero.
fn divided(mantissa: i128, digits: i64) -> i128 {
    match power(10, digits) {
        Some(divisor) if mantissa % divisor == 0 => mantissa / divisor,
        Some(divisor) => mantissa / divisor + mantissa.signum(),
        None => mantissa.signum(),
    }
}

/// Splits a text into its number without a sign and its suffix.
fn split(text: &str) -> std::result::Result<(&str, &str), Failure> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_digit = |c: char| c.is_ascii_digit();
    let rest = unsigned.trim_start_matches(is_digit);
    let rest = rest
        .strip_prefix('.')
        .map_or(rest, |rest| rest.trim_start_matches(is_digit));
    let number = &unsigned[..unsigned.len() - rest.len()];
    let power = rest.trim_start_matches(|c| LETTERS.contains(c));
    let power = power.strip_prefix(['+', '-']).unwrap_or(power);
    if power.chars().all(is_digit) {
        Ok((number, rest))
    } else {
        Err(WRONG_FORM)
    }
}

/// Returns the exponent and the format of a suffix: of two or of ten.
fn suffix(text: &str) -> std::result::Result<(i64, Format), Failure> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(suffix, _)| *suffix == text) {
        return Ok((*exponent, Format::Decimal));
    }
    if let Some(times) = BINARY.iter().position(|suffix| *suffix == text) {
        return Ok((
            i64::try_from(times).unwrap_or_default() * 10,
            Format::Binary,
        ));
    }
    let digits = text.strip_prefix(['e', 'E']).ok_or(WRONG_SUFFIX)?;
    let exponent: i64 = digits.parse().map_err(|_| WRONG_SUFFIX)?;
    if !(-1000..=1000).contains(&exponent) {
        return Err(Failure::TooLarge);
    }
    Ok((exponent, Format::Exponent))
}

impl Quantity {
    /// Parses a quantity in canonical form. Returns nothing if it is too large.
    pub fn of(value: &Value) -> Option<Self> {
        Self::parse(value.as_str()?).ok()
    }

    fn parse(text: &str) -> std::result::Result<Self, Failure> {
        if text.is_empty() {
            return Err(WRONG_FORM);
        }
        let (number, rest) = split(text)?;
        let (exponent, mut format) = suffix(rest)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let whole = match whole.trim_start_matches('0') {
            "" => "0",
            whole => whole,
        };
        let digits = format!("{whole}{fraction}");
        let length = i64::try_from(digits.len()).unwrap_or(i64::MAX);
        let places = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
        let mut mantissa: i128 = digits.parse().map_err(|_| Failure::TooLarge)?;
        let unscaled = mantissa;
        let is_binary = format == Format::Binary;
        let mut scale = if is_binary {
            -places
        } else {
            exponent - places
        };
        if is_binary {
            let factor = power(2, exponent).and_then(|factor| mantissa.checked_mul(factor));
            mantissa = factor.ok_or(Failure::TooLarge)?;
        }
        let sign = if text.starts_with('-') { -1 } else { 1 };
        // As Go decides whether 64 bits are enough. Only then, it keeps the text.
        let is_fast = if is_binary {
            fraction.is_empty() && 15 - length - exponent * 3 / 10 > 0
        } else {
            length <= FAST_DIGITS && scale >= NANO
        };
        if is_fast {
            let is_canonical = if is_binary {
                unscaled & 7 != 0
            } else {
                scale % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0')
            };
            return Ok(Self {
                mantissa: sign * mantissa,
                scale,
                format,
                text: is_canonical.then(|| text.to_owned()),
            });
        }
        if number.trim_start_matches('.').is_empty() {
            return Err(WRONG_NUMBER);
        }
        if scale < NANO && mantissa != 0 {
            mantissa = divided(mantissa, NANO - scale);
            scale = NANO;
        }
        if is_binary {
            let one = power(10, -scale).ok_or(Failure::TooLarge)?;
            let max = one.checked_mul(i64::MAX.into()).ok_or(Failure::TooLarge)?;
            if mantissa > max {
                (mantissa, scale) = (i64::MAX.into(), 0);
            } else if mantissa < one {
                format = Format::Decimal;
            }
        }
        Ok(Self {
            mantissa: sign * mantissa,
            scale,
            format,
            text: None,
        })
    }

    /// Rounds away from zero to a power of ten.
    fn rounded_up(mut self, scale: i64) -> Self {
        if self.scale < scale {
            self.mantissa = divided(self.mantissa, scale - self.scale);
            self.scale = scale;
            self.text = None;
        }
        self
    }

    pub fn is_negative(&self) -> bool {
        self.mantissa < 0
    }

    pub fn is_positive(&self) -> bool {
        self.mantissa > 0
    }

    pub fn is_whole(&self) -> bool {
        self.reduced().1 >= 0
    }

    /// Returns the shortest mantissa with its scale.
    fn reduced(&self) -> (i128, i64) {
        let (mut mantissa, mut scale) = (self.mantissa, self.scale);
        if mantissa == 0 {
            return (0, 0);
        }
        while mantissa % 10 == 0 {
            mantissa /= 10;
            scale += 1;
        }
        (mantissa, scale)
    }

    /// Returns the number, if it is a whole one.
    fn integer(&self) -> Option<i128> {
        let factor = power(10, self.scale.abs())?;
        if self.scale >= 0 {
            return self.mantissa.checked_mul(factor);
        }
        (self.mantissa % factor == 0).then(|| self.mantissa / factor)
    }

    /// Compares the numbers.
    pub fn compare(&self, other: &Self) -> Ordering {
        let least = self.scale.min(other.scale);
        let at = |it: &Self| {
            let factor = power(10, it.scale - least);
            factor.and_then(|factor| it.mantissa.checked_mul(factor))
        };
        match (at(self), at(other)) {
            (Some(one), Some(other)) => one.cmp(&other),
            // Only the number with the larger exponent can be too large. It is then further from zero, so its sign decides.
            (None, _) => self.mantissa.cmp(&0),
            (_, None) => 0.cmp(&other.mantissa),
        }
    }
}

impl std::fmt::Display for Quantity {
    /// Formats the canonical form (`CanonicalizeBytes`).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(text) = &self.text {
            return f.write_str(text);
        }
        if self.mantissa == 0 {
            return f.write_str("0");
        }
        // Without a suffix, or with a fraction, it has the decimal form.
        if self.format == Format::Binary
            && let Some(mut whole) = self.integer()
            && whole.abs() >= 1024
        {
            let mut times = 0;
            while whole % 1024 == 0 {
                whole /= 1024;
                times += 1;
            }
            return write!(f, "{whole}{}", BINARY.get(times).unwrap_or(&""));
        }
        let (mantissa, mut exponent) = self.reduced();
        let zeros = exponent.rem_euclid(3);
        exponent -= zeros;
        let zeros = "0".repeat(usize::try_from(zeros).unwrap_or_default());
        write!(f, "{mantissa}{zeros}")?;
        if self.format == Format::Exponent {
            return match exponent {
                0 => Ok(()),
                exponent => write!(f, "e{exponent}"),
            };
        }
        let suffix = DECIMAL.iter().find(|(_, it)| *it == exponent);
        f.write_str(suffix.map_or("", |(suffix, _)| suffix))
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, Quantity};

    fn shown(text: &str) -> String {
        match Quantity::parse(text) {
            Ok(quantity) => quantity.to_string(),
            Err(Failure::Wrong(words)) => format!("error: {words}"),
            Err(Failure::TooLarge) => "too large".to_owned(),
        }
    }

    #[test]
    fn quantities_have_the_canonical_form_of_go() {
        for (text, canonical) in [
            ("0", "0"),
            ("-0", "0"),
            ("0.0", "0"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            (".5", "500m"),
            ("1.", "1."),
            ("-0.5", "-500m"),
            ("1024Mi", "1Gi"),
            ("1025Mi", "1025Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1024", "1024"),
            ("1000", "1k"),
            ("1Ki", "1Ki"),
            ("1000Ki", "1000Ki"),
            ("1e3", "1e3"),
            ("1E3", "1E3"),
            ("10e3", "10e3"),
            ("1000e3", "1e6"),
            ("1e2", "100"),
            ("1e-10", "1e-9"),
            ("0.0000000001", "1n"),
            ("1n", "1n"),
            ("100Ei", "9223372036854775807"),
            ("-100Ei", "-9223372036854775807"),
            ("12345678901234567890", "12345678901234567890"),
            // As Go has it.
            ("+5", "+5"),
            ("007", "007"),
            ("1.500", "1.500"),
            ("k", "0"),
            (".", "0"),
            ("-Ki", "0"),
            ("1e9223372036854775807", "too large"),
            ("1e-9223372036854775808", "too large"),
        ] {
            assert_eq!(shown(text), canonical, "{text}");
        }
        for text in [
            "", "x", "1.2.3", "1 Gi", "1G i", "1,5", "1ki", "1KiB", "1e", "1ee5", "--1", "\t1",
            "Ei", ".Ei", "-Ei", "e-10",
        ] {
            assert!(shown(text).starts_with("error"), "{text}: {}", shown(text));
        }
    }
}
