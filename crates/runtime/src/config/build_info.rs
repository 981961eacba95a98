//! Commit that this program was built from.

use std::hint::black_box;

/// Prefix of the commit in the binary.
const LABEL: &str = "built by the runtime from commit ";

/// Placeholder that `nix/stamp.sh` overwrites with the commit after linking. So a commit without source changes compiles
/// nothing. It must occur only once in the binary.
static STAMP: &str = "built by the runtime from commit ????????????????????????????????????????";

/// Returns the commit of the build, with the suffix `-dirty` if there were more changes. `None` if the build did not specify
/// it.
#[must_use]
pub(crate) fn commit() -> Option<&'static str> {
    // Read at run time: the compiler must not assume the placeholder.
    let commit = black_box(STAMP).strip_prefix(LABEL)?;
    (!commit.starts_with('?')).then_some(commit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_a_commit_names_none() {
        assert_eq!(commit(), None);
        assert_eq!(STAMP, format!("{LABEL}{}", "?".repeat(40)));
    }
}
