//! Files that `make generate` derives from the tables of metrics and settings and from the command line.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each user has its part of this, a test or an example"
)]

pub mod command_line;
pub mod dashboard;
pub mod settings;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the path and the content of each file that is generated in whole or in part.
pub fn files() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let [reference, defaults] =
        ["docs/configuration.md", "config/foo-controller.toml"].map(|path| root.join(path));
    let prometheus = root.join("deploy/components/prometheus");
    let texts = [&reference, &defaults].map(|path| fs::read_to_string(path).unwrap());
    let mut files = vec![
        (prometheus.join("dashboard.json"), dashboard::dashboard()),
        (prometheus.join("METRICS.md"), dashboard::list()),
        (reference, settings::reference(&texts[0])),
        (defaults, settings::defaults(&texts[1])),
    ];
    let share = root.join("nix/share");
    files.extend(command_line::files().map(|(name, text)| (share.join(name), text)));
    files
}
