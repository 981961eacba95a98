//! The verdict of a check.

use std::time::Duration;

use crate::api::failure::{brief, with_causes};

/// How long a check may take. One after the other there are at most two: the others do not wait for each other.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grade {
    Ok,
    /// The controller works, but not as well as it could.
    Warning,
    /// The controller does not work, or not as it says.
    Error,
    /// Nothing is known, or there is nothing to know.
    Skipped,
}

impl Grade {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Skipped => "skipped",
        }
    }
}

/// What a check found, and how it is mended.
pub(super) type Verdict = (Grade, String);

pub(super) fn ok(text: impl Into<String>) -> Verdict {
    (Grade::Ok, text.into())
}

pub(super) fn warning(text: impl Into<String>) -> Verdict {
    (Grade::Warning, text.into())
}

pub(super) fn error(text: impl Into<String>) -> Verdict {
    (Grade::Error, text.into())
}

pub(super) fn skipped(text: impl Into<String>) -> Verdict {
    (Grade::Skipped, text.into())
}

/// Findings in a line.
pub(super) const FOUND: usize = 3;

/// Returns one verdict of many findings: the errors come first, and those beyond [`FOUND`] are counted. `well` is for no finding.
pub(super) fn worst(mut found: Vec<Verdict>, well: impl FnOnce() -> Verdict) -> Verdict {
    found.sort_by_key(|(grade, _)| *grade != Grade::Error);
    let Some(&(grade, _)) = found.first() else {
        return well();
    };
    let texts: Vec<_> = found.iter().take(FOUND).map(|(_, text)| &**text).collect();
    let more = match found.len().saturating_sub(FOUND) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    (grade, format!("{}{more}", texts.join("; ")))
}

/// That a request failed: what it was to do, and why it did not.
pub(super) fn failed(what: &str, cause: &kube::Error) -> Verdict {
    error(format!("cannot {what}: {}", why(cause)))
}

pub(super) fn why(cause: &kube::Error) -> String {
    brief(&match cause {
        kube::Error::Api(status) => {
            format!("{} {}: {}", status.code, status.reason, status.message)
        }
        kube::Error::Service(error) => with_causes(&**error),
        other => other.to_string(),
    })
}

pub(super) fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_findings_the_errors_come_first() {
        let well = || ok("fine");
        assert_eq!(worst(Vec::new(), well), ok("fine"));
        let found = vec![warning("a"), error("b"), warning("c"), error("d")];
        assert_eq!(worst(found, well), error("b; d; a; and 1 more"));
    }
}
