//! What this program was built from.

use std::hint::black_box;

/// What comes before the commit in the program. It is nowhere else in it.
const LABEL: &str = "built by the runtime from commit ";

/// A build with a commit writes it over the question marks once the program is linked (`nix/stamp.sh`), so a commit that
/// changes no source compiles nothing.
static STAMP: &str = "built by the runtime from commit ????????????????????????????????????????";

/// The commit that this was built from, with `-dirty` at its end where there was more than that; `None` where the build did
/// not say.
#[must_use]
pub fn commit() -> Option<&'static str> {
    // What is in the file counts, not what the compiler knows to be there.
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
