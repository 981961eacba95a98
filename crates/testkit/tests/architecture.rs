//! The crate knows no particular operator.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

/// Collects the lines of Rust and YAML files that contain `name`.
fn collect(folder: &Path, name: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, name, found);
        } else if path
            .extension()
            .is_some_and(|it| it == "rs" || it == "yaml")
        {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text
                .lines()
                .filter(|line| line.to_lowercase().contains(name));
            found.extend(lines.map(|line| format!("{}: {line}", path.display())));
        }
    }
}

#[test]
fn no_operator_is_named() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for folder in ["src", "examples"] {
        collect(&root.join(folder), "foo", &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}
