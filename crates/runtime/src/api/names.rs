//! Name formats of Kubernetes (RFC 1123). The configuration and the API require the same formats.

/// Returns whether `text` is a DNS-1123 label, such as the name of a namespace.
#[must_use]
pub(crate) fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// Returns whether `text` is a DNS-1123 subdomain of at most `longest` characters, such as the name of most objects. Its parts
/// have no separate limit.
#[must_use]
pub fn is_subdomain(text: &str, longest: usize) -> bool {
    text.len() <= longest && text.split('.').all(is_part)
}

/// Returns whether `text` is not empty, and consists of lower-case letters, digits and inner hyphens.
fn is_part(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(allowed) && !text.starts_with('-') && !text.ends_with('-')
}
