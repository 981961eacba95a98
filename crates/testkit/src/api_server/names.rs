//! Names: DNS labels, and names that the API server generates.

/// Maximum length of the prefix of a generated name (`MaxGeneratedNameLength` of `k8s.io/apiserver/pkg/storage/names`).
const MAX_PREFIX: usize = 58;
/// Length of the suffix of a generated name.
const SUFFIX: usize = 5;
/// Characters of the suffix (`k8s.io/apimachinery/pkg/util/rand`): without vowels, so that no name is offensive.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Returns the name with this prefix for a number. Consecutive numbers have different names.
pub fn generated(prefix: &str, number: u64) -> String {
    let mut rest = number.wrapping_mul(7_919) % 27_u64.pow(5);
    let mut name: String = prefix.chars().take(MAX_PREFIX).collect();
    for _ in 0..SUFFIX {
        let letter = usize::try_from(rest % 27).unwrap_or_default();
        name.push(char::from(LETTERS[letter]));
        rest /= 27;
    }
    name
}

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
