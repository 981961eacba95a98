//! Names that are DNS labels.

/// Returns the error of a DNS-1035 label (`IsDNS1035Label`).
pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 63 {
        wrong.push("must be no more than 63 bytes".to_owned());
    }
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(is_inner)
        && !text.ends_with('-');
    if !is_label {
        wrong.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and \
             end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is \
             '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    wrong
}
