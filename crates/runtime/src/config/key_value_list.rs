//! Lists of `name=value` with commas between them, percent-encoded, as OpenTelemetry's variables have them.

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::rule::items;

/// The list as headers; `None` where one of them cannot be sent.
pub(crate) fn headers(list: &str) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for pair in pairs(list) {
        let (name, value) = pair?;
        let name = HeaderName::try_from(name).ok()?;
        let mut value = HeaderValue::try_from(decoded(value)?).ok()?;
        if value.is_empty() || is_grpcs(&name) {
            return None;
        }
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Some(headers)
}

/// The list as names and values; `None` where one of them is wrong: the specification has none of them taken then.
pub(crate) fn attributes(list: &str) -> Option<Vec<(String, String)>> {
    let attribute = |pair: Option<(&str, &str)>| {
        let (name, value) = pair?;
        Some((decoded(name)?, decoded(value)?))
    };
    pairs(list).map(attribute).collect()
}

/// The pairs as they are written; `None` for what is not one.
fn pairs(list: &str) -> impl Iterator<Item = Option<(&str, &str)>> {
    items(list).map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then_some((name, value.trim()))
    })
}

/// Whether gRPC, or HTTP/2, has a use of its own for a header, and leaves out, or takes offence at, anybody else's.
fn is_grpcs(name: &HeaderName) -> bool {
    const THEIRS: [&str; 9] = [
        "connection",
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

/// What is percent-encoded as `text`; `None` where that is nothing, or not UTF-8.
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

    /// Half an escape, what is not hexadecimal, and what is not UTF-8 are nothing that was encoded.
    #[test]
    fn what_is_encoded_is_decoded_or_refused() {
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
