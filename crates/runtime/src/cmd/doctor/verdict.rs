//! The verdict of a check.

use std::time::Duration;

use crate::api::failure::{brief, with_causes};

/// Time limit of a check. `doctor` takes at most twice this time: first the API server's version, then all other checks
/// concurrently.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// The fix of a missing or outdated CRD, for messages.
pub(super) const APPLY: &str = "apply the CRD that the command crd prints";

/// The grade of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grade {
    Ok,
    /// The controller works, but not as well as it could.
    Warning,
    /// The controller does not work, or not as documented.
    Error,
    /// The check is not possible, or not needed.
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

/// The grade of a check, with its finding and the remedy.
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

/// Findings listed in one line.
pub(super) const FOUND: usize = 3;

/// Combines many findings into one verdict: lists the first [`FOUND`], errors first, and counts the others. Returns `well()`
/// without findings.
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

/// Returns the error for a failed request. `what` names its purpose.
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
    fn errors_are_listed_first() {
        let well = || ok("fine");
        assert_eq!(worst(Vec::new(), well), ok("fine"));
        let found = vec![warning("a"), error("b"), warning("c"), error("d")];
        assert_eq!(worst(found, well), error("b; d; a; and 1 more"));
    }
}
