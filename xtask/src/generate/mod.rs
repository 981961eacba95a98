//! Files that `make generate` derives from the tables of metrics and settings, the command line, the CRD, and the manifests in
//! `deploy`.

mod chart;
mod command_line;
mod dashboard;
mod fields;
pub mod merge_keys;
mod settings;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Writes the files.
pub fn run() -> ExitCode {
    for (path, text) in files() {
        // Leave current files untouched: the defaults are compiled in, and a new timestamp would cause a rebuild.
        if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
            fs::write(path, text).unwrap();
        }
    }
    ExitCode::SUCCESS
}

/// Returns the path and the content of each file that is generated in whole or in part.
fn files() -> Vec<(PathBuf, String)> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let [reference, defaults, kind] = [
        "docs/configuration.md",
        "config/foo-controller.toml",
        "docs/foo.md",
    ]
    .map(|path| root.join(path));
    let prometheus = root.join("deploy/components/prometheus");
    let texts = [&reference, &defaults, &kind].map(|path| fs::read_to_string(path).unwrap());
    let mut files = vec![
        (prometheus.join("dashboard.json"), dashboard::dashboard()),
        (prometheus.join("METRICS.md"), dashboard::list()),
        (reference, settings::reference(&texts[0])),
        (defaults, settings::defaults(&texts[1])),
        (kind, fields::reference(&texts[2])),
    ];
    let share = root.join("nix/share");
    files.extend(command_line::files().map(|(name, text)| (share.join(name), text)));
    // The chart is derived from some of these files, in their new state.
    let read = |path: &str| {
        let path = root.join(path);
        let new = files.iter().find(|(of, _)| *of == path);
        new.map_or_else(
            || fs::read_to_string(&path).unwrap(),
            |(_, text)| text.clone(),
        )
    };
    let (folder, chart) = (root.join("deploy/chart"), chart::files(read));
    files.extend(
        chart
            .into_iter()
            .map(|(name, text)| (folder.join(name), text)),
    );
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All generated files are current.
    #[test]
    fn generated_files_are_current() {
        for (path, generated) in files() {
            let committed = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                committed == generated,
                "{} is out of date: run `make generate`",
                path.display()
            );
        }
    }
}
