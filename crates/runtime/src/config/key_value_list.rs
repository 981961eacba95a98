//! Comma-separated lists of percent-encoded `name=value` pairs, as in OpenTelemetry's variables.

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::rule::items;

/// Parses the list as headers. `None` if any header cannot be sent.
pub(crate) fn headers(list: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for pair in pairs(list) {
        let (name, value) = pair?;
        let name = HeaderName::try_from(name).ok()?;
        let mut value = HeaderValue::try_from(decoded(value)?).ok()?;
        if value.is_empty() || is_reserved(&name) {
            return None;
        }
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Some(headers)
}

/// Parses the list as names and values. `None` if any pair is invalid: the specification then discards the whole list.
pub(crate) fn attributes(list: &str) -> Option<Vec<(String, String)>> {
    let attribute = |pair: Option<(&str, &str)>| {
        let (name, value) = pair?;
        Some((decoded(name)?, decoded(value)?))
    };
    pairs(list).map(attribute).collect()
}

/// Returns the pairs, still encoded. An invalid pair is `None`.
fn pairs(list: &str) -> impl Iterator<Item = Option<(&str, &str)>> {
    items(list).map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then_some((name, value.trim()))
    })
}

/// Returns whether gRPC, HTTP or OTLP/HTTP reserves a header. A header of the user with such a name would be dropped or rejected.
fn is_reserved(name: &HeaderName) -> bool {
    const THEIRS: [&str; 10] = [
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    name.as_str().starts_with("grpc-") || THEIRS.contains(&name.as_str())
}

/// Decodes percent-encoded text. `None` if an escape is invalid, or if the result is not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut escapes = text.split('%').skip(1).map(str::as_bytes);
    let whole = |escape: &[u8]| escape.len() >= 2 && escape[..2].iter().all(u8::is_ascii_hexdigit);
    if !escapes.all(whole) {
        return None;
    }
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Incomplete escapes, non-hexadecimal escapes and invalid UTF-8 are rejected.
    #[test]
    fn percent_encoding_is_decoded_or_rejected() {
        for (text, value) in [
            ("", Some("")),
            ("plain", Some("plain")),
            ("a%20b%2cc%3D", Some("a b,c=")),
            ("%25%41", Some("%A")),
            ("%E2%82%AC€", Some("€€")),
            ("%", None),
            ("a%2", None),
            ("%%20", None),
            ("%+1", None),
            ("%zz", None),
            ("%ff", None),
        ] {
            assert_eq!(decoded(text).as_deref(), value, "{text:?}");
        }
    }
}
