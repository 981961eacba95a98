//! Regular expressions with the syntax of Go (RE2), which the API server uses.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use regex::Regex;

/// A regular expression and its text.
#[derive(Clone, Debug)]
pub struct Pattern {
    pub text: String,
    regex: Arc<Regex>,
}

/// Largest number of a repetition in Go.
const MOST_REPETITIONS: u32 = 1000;
/// Number of compiled expressions that are kept.
const KEPT: usize = 256;

impl Pattern {
    /// Compiles an expression, or returns the reason why it cannot be compiled.
    pub fn new(text: &str) -> Result<Self, String> {
        static KNOWN: Mutex<BTreeMap<String, Arc<Regex>>> = Mutex::new(BTreeMap::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let regex = if let Some(regex) = known.get(text) {
            regex.clone()
        } else {
            let regex = Regex::new(&translated(text)?)
                .map_err(|error| format!("the regular expression `{text}`: {error}"))?;
            if known.len() >= KEPT {
                known.clear();
            }
            let regex = Arc::new(regex);
            known.insert(text.to_owned(), regex.clone());
            regex
        };
        Ok(Self {
            text: text.to_owned(),
            regex,
        })
    }

    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    /// Returns all matches, in order.
    pub fn matches<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        self.regex.find_iter(text).map(|found| found.as_str())
    }
}

/// Translates an expression of Go for the crate `regex`. Classes such as `\d` are of ASCII in Go, a `{` may be literal, and a `[` in
/// a class is.
fn translated(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text.chars().peekable();
    // Number of characters since the class began.
    let mut class: Option<usize> = None;
    let mut at = 0;
    while let Some(c) = rest.next() {
        at += c.len_utf8();
        match (c, class) {
            ('\\', _) => {
                let Some(escaped) = rest.next() else {
                    return Err(format!(
                        "the regular expression `{text}` ends with a backslash"
                    ));
                };
                at += escaped.len_utf8();
                let ascii = match escaped {
                    'd' => "0-9",
                    'w' => "0-9A-Za-z_",
                    's' => "\\t\\n\\f\\r\\x20",
                    'D' => "^0-9",
                    'W' => "^0-9A-Za-z_",
                    'S' => "^\\t\\n\\f\\r\\x20",
                    _ => "",
                };
                match (escaped, ascii, class) {
                    ('b' | 'B', ..) if class.is_none() => {
                        out.extend(["(?-u:\\", escaped.encode_utf8(&mut [0; 4]), ")"]);
                    }
                    ('Q', ..) => return Err(format!("`\\Q` in the regular expression `{text}`")),
                    (_, "", _) => out.extend(['\\', escaped]),
                    (_, ascii, Some(_)) if !ascii.starts_with('^') => out.push_str(ascii),
                    (_, ascii, _) => out.extend(["[", ascii, "]"]),
                }
                class = class.map(|count| count + 1);
            }
            ('[', None) => {
                out.push('[');
                class = Some(0);
                if rest.peek() == Some(&'^') {
                    rest.next();
                    at += 1;
                    out.push('^');
                }
            }
            ('[', Some(count)) => {
                // A class such as `[:alpha:]` has the same form in both.
                let named = text[at..].starts_with(':') && text[at..].contains(":]");
                if named {
                    let end = text[at..].find(":]").map_or(0, |end| end + 2);
                    out.push('[');
                    out.push_str(&text[at..at + end]);
                    for _ in text[at..at + end].chars() {
                        rest.next();
                    }
                    at += end;
                } else {
                    out.push_str("\\[");
                }
                class = Some(count + 1);
            }
            (']', Some(0)) => {
                out.push_str("\\]");
                class = Some(1);
            }
            (']', Some(_)) => {
                out.push(']');
                class = None;
            }
            ('&' | '~', Some(count)) => {
                out.extend(['\\', c]);
                class = Some(count + 1);
            }
            ('{', None) => match repetition(&text[at..]) {
                Some(most) if most > MOST_REPETITIONS => {
                    return Err(format!(
                        "the regular expression `{text}` repeats more than 1000 times"
                    ));
                }
                Some(_) => out.push('{'),
                None => out.push_str("\\{"),
            },
            (c, _) => {
                out.push(c);
                class = class.map(|count| count + 1);
            }
        }
    }
    Ok(out)
}

/// Returns the largest number of a repetition, if `rest` continues one.
fn repetition(rest: &str) -> Option<u32> {
    let (inner, _) = rest.split_once('}')?;
    let (least, most) = inner.split_once(',').unwrap_or((inner, inner));
    let number = |text: &str| -> Option<u32> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u32::MAX))
    };
    let least = number(least)?;
    if most.is_empty() {
        return Some(least);
    }
    Some(least.max(number(most)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_of_ascii_like_those_of_go() {
        for (pattern, text, matches) in [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false),
            (r"^[\w.]+$", "a_1.b", true),
            (r"^\w+$", "é", false),
            (r"^[a\D]+$", "bé", true),
            (r"^a{$", "a{", true),
            (r"^[[]x$", "[x", true),
            (r"^[[:alpha:]]+$", "ab", true),
            (r"^[]a]+$", "]a", true),
            (r"^a{2,3}$", "aaa", true),
            (r"\bone\b", "a one b", true),
            (r"^[&&]+$", "&", true),
        ] {
            let compiled = Pattern::new(pattern).unwrap();
            assert_eq!(compiled.is_match(text), matches, "{pattern} on {text}");
        }
        assert!(Pattern::new("(").is_err());
        assert!(Pattern::new("a{2000}").is_err());
    }
}
