//! What is generated is current, and what is cited is there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Row A1: the CRD that is installed is the one that the program was built with.
#[test]
fn deploy_has_the_current_crd() {
    let printed = Command::new(env!("CARGO_BIN_EXE_foo-controller"))
        .arg("crd")
        .output()
        .unwrap();
    let committed = fs::read_to_string(root().join("deploy/crd.yaml")).unwrap();
    assert!(
        String::from_utf8(printed.stdout).unwrap() == committed,
        "deploy/crd.yaml is out of date: run `make generate`"
    );
}

/// Every row, hazard and invariant that code or a test names stands in the tables, which is where a reader
/// looks it up; and every one in the tables is named somewhere.
#[test]
fn rows_lead_somewhere() {
    let tables = fs::read_to_string(root().join("tests/README.md")).unwrap();
    let listed: BTreeSet<String> = tables
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| ")?
                .split(' ')
                .next()
                .map(str::to_owned)
        })
        .filter(|id| is_id(id))
        .collect();
    let mut cited = BTreeSet::new();
    let code = ["src", "tests"].map(|folder| sources(&root().join(folder)));
    let versions = ["Cargo.toml", "deny.toml"].map(|file| root().join(file));
    for file in code.into_iter().flatten().chain(versions) {
        let text = fs::read_to_string(&file).unwrap();
        for word in text.split(|c: char| !c.is_ascii_alphanumeric()) {
            // In the name of a test it is in lower case: `q2_workers_reconcile_at_once`.
            let id = word.to_ascii_uppercase();
            if is_id(&id) && (listed.contains(&id) || is_id(word)) {
                assert!(
                    listed.contains(&id),
                    "{}: {id} is in no table",
                    file.display()
                );
                cited.insert(id);
            }
        }
    }
    let uncited: Vec<_> = listed.difference(&cited).collect();
    assert!(
        uncited.is_empty(),
        "in the tables, and nowhere else: {uncited:?}"
    );
}

/// A letter of the tables and a number, as in R10.
fn is_id(word: &str) -> bool {
    let (letter, number) = word.split_at(word.len().min(1));
    matches!(letter, "A" | "R" | "Q" | "P" | "H" | "I") && number.parse::<u8>().is_ok()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.extension() {
            _ if path.is_dir() => sources(&path),
            Some(extension) if extension == "rs" => vec![path],
            _ => Vec::new(),
        })
        .collect()
}
