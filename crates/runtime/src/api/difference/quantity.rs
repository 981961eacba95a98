//! Quantities such as `500m` and `1Gi`, of which the API server stores one spelling only.

/// Smallest unit, as a power of ten: the API server rounds up to it.
const NANO: i32 = -9;

/// Returns the value in units of 10⁻⁹. `None` if the text is not a quantity, or its value does not fit.
pub(super) fn parse(text: &str) -> Option<i128> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|it: char| !it.is_ascii_digit() && it != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let (binary, decimal) = scale(suffix)?;
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let digits = digits.checked_mul(1 << binary)?;
    let decimal = decimal
        .checked_sub(NANO)?
        .checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10_i128.checked_pow(decimal.unsigned_abs());
    let value = match (power, decimal) {
        (Some(power), 0..) => digits.checked_mul(power)?,
        (Some(power), _) => digits / power + i128::from(digits % power > 0),
        (None, 0..) if digits > 0 => return None,
        (None, _) => i128::from(digits > 0 && decimal < 0),
    };
    Some(sign * value)
}

/// Returns a suffix as a power of two and a power of ten.
fn scale(suffix: &str) -> Option<(u32, i32)> {
    let decimal = match suffix {
        "n" => -9,
        "u" => -6,
        "m" => -3,
        "" => 0,
        "k" => 3,
        "M" => 6,
        "G" => 9,
        "T" => 12,
        "P" => 15,
        "E" => 18,
        "Ki" => return Some((10, 0)),
        "Mi" => return Some((20, 0)),
        "Gi" => return Some((30, 0)),
        "Ti" => return Some((40, 0)),
        "Pi" => return Some((50, 0)),
        "Ei" => return Some((60, 0)),
        exponent => exponent.strip_prefix(['e', 'E'])?.parse().ok()?,
    };
    Some((0, decimal))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn spellings_of_one_value_are_the_same_value() {
        for spellings in [
            &["1", "1000m", "1.0", "1.", "+1", "1e0", "01", "1000000u"][..],
            &["0.5", "500m", ".5", "5e-1", "5E-1"],
            &["1Gi", "1024Mi", "1073741824", "1048576Ki"],
            &["1.5Gi", "1536Mi"],
            &["1E", "1e18", "1000P", "1000000000000000000"],
            &["-2", "-2000m"],
            &["0", "0.0", "-0", "0Ei", "0e50"],
            &["1n", "0.1n", "1e-30", "1e-99"],
        ] {
            let mut values = spellings.iter().map(|text| (text, parse(text)));
            let first = values.next();
            let first = first.and_then(|(_, value)| value);
            assert!(first.is_some(), "{spellings:?}");
            for (text, value) in values {
                assert_eq!(value, first, "{text} in {spellings:?}");
            }
        }
    }

    #[test]
    fn other_values_differ_and_other_texts_are_no_quantities() {
        let values = ["-1", "0", "1m", "1", "1k", "1Ki", "1M", "1Mi", "8Ei"].map(parse);
        assert!(values.iter().all(Option::is_some));
        assert!(values.is_sorted() && values.windows(2).all(|pair| pair[0] != pair[1]));
        for text in [
            "",
            ".",
            "-",
            "+-1",
            "1 ",
            " 1",
            "1K",
            "1ki",
            "1ee3",
            "1e",
            "e3",
            "Mi",
            "1.2.3",
            "0x10",
            "1e99",
            "1e2147483647",
            "99999999999999999999999999999999999999Ei",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
