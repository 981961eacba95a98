//! Warnings in the API server's responses (header `Warning`, RFC 7234), for example about a deprecated version or a Deployment
//! whose pods `PodSecurity` would reject.
//!
//! Each text is logged once, with the object of the first such response, as in client-go.

use std::{collections::HashSet, time::Duration};

use http::{Request, Response, header::WARNING};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use crate::api::key::Key;

/// The code of the API server's warnings. Caches use other codes.
const MISCELLANEOUS: &str = "299";

/// Number of remembered texts. A text may contain a name or a number, so their number is unlimited. Further texts are logged at
/// most once per [`INTERVAL`].
const TEXTS: usize = 64;
const INTERVAL: Duration = Duration::from_mins(1);

/// Warnings that have been logged.
#[derive(Default)]
pub(crate) struct Warnings(Mutex<Logged>);

#[derive(Default)]
struct Logged {
    texts: HashSet<String>,
    last: Option<Instant>,
}

impl Logged {
    fn is_new(&mut self, text: &str) -> bool {
        if self.texts.contains(text) {
            return false;
        }
        let now = Instant::now();
        if self.texts.len() < TEXTS {
            self.texts.insert(text.to_owned());
        } else if self.last.is_some_and(|last| now < last + INTERVAL) {
            return false;
        }
        self.last = Some(now);
        true
    }
}

impl Warnings {
    /// Logs the new warnings of a response about `object`.
    pub(crate) fn log<B>(&self, object: &str, response: &Response<B>) {
        for header in response.headers().get_all(WARNING) {
            let header = String::from_utf8_lossy(header.as_bytes());
            for text in texts(&header) {
                if self.0.lock().is_new(&text) {
                    warn!(object, "the API server warns: {text}");
                }
            }
        }
    }
}

/// Returns the object of a request. A creation carries it as a [`Key`], because its path has no name.
pub(crate) fn object<B>(request: &Request<B>) -> String {
    let mut parts = request
        .uri()
        .path()
        .split('/')
        .filter(|part| !part.is_empty());
    let version = match parts.find(|part| matches!(*part, "api" | "apis")) {
        Some("apis") => 1,
        _ => 0,
    };
    let mut parts = parts.skip(version + 1).peekable();
    let namespace = parts.next_if_eq(&"namespaces").and_then(|_| parts.next());
    let resource = parts.next().unwrap_or("namespaces");
    let name = parts.next();
    match (request.extensions().get::<Key>(), namespace, name) {
        (Some(key), _, _) => format!("{resource} {key}"),
        (None, Some(namespace), Some(name)) => format!("{resource} {namespace}/{name}"),
        (None, Some(one), None) | (None, None, Some(one)) => format!("{resource} {one}"),
        (None, None, None) => resource.to_owned(),
    }
}

/// Returns the texts of one header: `299 - "a text"`, separated by commas.
fn texts(mut header: &str) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some((before, quoted)) = header.split_once('"') {
        let mut text = String::new();
        let mut letters = quoted.char_indices();
        let end = loop {
            match letters.next() {
                Some((_, '\\')) => text.extend(letters.next().map(|(_, letter)| letter)),
                Some((at, '"')) => break at + 1,
                Some((_, letter)) => text.push(letter),
                None => return texts,
            }
        };
        header = &quoted[end..];
        // An optional date follows the text, without a code before it.
        let before = before.trim_start_matches([',', ' ']);
        if before.split(' ').next() == Some(MISCELLANEOUS) && !text.is_empty() {
            texts.push(text);
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::testing::fixtures::logged;

    #[test]
    fn headers_are_read_as_rfc_7234_has_them() {
        for (header, expected) in [
            (r#"299 - "plain""#, &["plain"][..]),
            (
                r#"299 kube-apiserver "a \"quoted\" \\ text""#,
                &[r#"a "quoted" \ text"#],
            ),
            (
                r#"299 - "one, with a comma", 299 - "two""#,
                &["one, with a comma", "two"],
            ),
            (
                r#"299 - "dated" "Wed, 21 Oct 2026 07:28:00 GMT", 299 - "next""#,
                &["dated", "next"],
            ),
            (r#"110 - "stale", 299 - "ours""#, &["ours"]),
            (r#"299 - """#, &[]),
            (r#"299 - "without an end"#, &[]),
            ("299", &[]),
            ("", &[]),
        ] {
            assert_eq!(texts(header), expected, "{header}");
        }
    }

    #[test]
    fn a_warning_names_the_object() {
        for (path, key, expected) in [
            (
                "/apis/apps/v1/namespaces/n/deployments/a",
                None,
                "deployments n/a",
            ),
            (
                "/prefix/apis/apps/v1/namespaces/n/deployments/a/scale",
                None,
                "deployments n/a",
            ),
            (
                "/apis/apps/v1/namespaces/n/deployments",
                Some("a"),
                "deployments n/a",
            ),
            (
                "/apis/apps/v1/namespaces/n/deployments",
                None,
                "deployments n",
            ),
            ("/apis/apps/v1/deployments", None, "deployments"),
            ("/api/v1/nodes/a", None, "nodes a"),
            ("/api/v1/namespaces/n", None, "namespaces n"),
        ] {
            let mut request = Request::get(path).body(()).unwrap();
            if let Some(name) = key {
                request.extensions_mut().insert(Key::new("n", name));
            }
            assert_eq!(object(&request), expected, "{path}");
        }
    }

    #[test]
    fn each_warning_is_logged_once_and_their_number_is_limited() {
        let (lines, _guard) = logged(tracing::Level::INFO);
        let warnings = Warnings::default();
        let response = |text: &str| {
            let response = Response::builder().header(WARNING, format!("299 - \"{text}\""));
            response.body(()).unwrap()
        };
        for object in ["deployments n/a", "deployments n/b"] {
            warnings.log(object, &response("would violate PodSecurity"));
        }
        let logged = String::from_utf8(std::mem::take(&mut *lines.lock())).unwrap();
        assert_eq!(logged.lines().count(), 1, "{logged}");
        assert!(
            logged.contains("deployments n/a") && logged.contains("would violate"),
            "{logged}"
        );
        for number in 0..1000 {
            warnings.log("parents n/a", &response(&number.to_string()));
        }
        let logged = String::from_utf8(std::mem::take(&mut *lines.lock())).unwrap();
        assert!(logged.lines().count() <= TEXTS, "{logged}");
    }
}
