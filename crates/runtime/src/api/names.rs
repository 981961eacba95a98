//! The names that Kubernetes takes (RFC 1123): the configuration and the API ask for the same ones.

/// A DNS-1123 label: what a namespace may be called.
#[must_use]
pub(crate) fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

/// A DNS-1123 subdomain of at most `longest` characters: what most objects may be called. Its parts have
/// no bound of their own.
#[must_use]
pub fn is_subdomain(text: &str, longest: usize) -> bool {
    text.len() <= longest && text.split('.').all(is_part)
}

/// What both are made of: lower-case letters, digits and, inside, hyphens.
fn is_part(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(allowed) && !text.starts_with('-') && !text.ends_with('-')
}
