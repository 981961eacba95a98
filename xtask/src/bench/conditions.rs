//! Conditions of a measurement: revision, versions and machine.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{process::program, report::Side};
use operator_testkit::cluster::Cluster;

/// Everything that has to be equal for another run to give the same figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Conditions {
    /// Commit of this repository; ends with `-dirty` if the working tree differs from it.
    pub commit: String,
    /// Start of the run, in UTC.
    pub date: String,
    pub kernel: String,
    pub processor: String,
    pub cores: usize,
    /// Versions by program.
    pub versions: BTreeMap<String, String>,
}

impl Conditions {
    pub async fn of(cluster: &Cluster) -> Self {
        let kernel = rustix::system::uname();
        let info = fs::read_to_string("/proc/cpuinfo").unwrap();
        let processor = info.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == "model name").then(|| value.trim().to_owned())
        });
        let server = cluster.client().await.apiserver_version().await.unwrap();
        let etcd = output(Command::new(cluster.ready().bin.join("etcd")).arg("--version"));
        let etcd = etcd.lines().next().unwrap_or_default();
        let rust = output(Command::new("rustc").arg("--version"));
        let mut versions = BTreeMap::from([
            (
                "etcd".to_owned(),
                etcd.rsplit(' ').next().unwrap().to_owned(),
            ),
            ("kube-apiserver".to_owned(), server.git_version),
            (
                "Rust".to_owned(),
                rust.split(' ').nth(1).unwrap().to_owned(),
            ),
        ]);
        versions.extend(of_peer());
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/kube-rs/Cargo.toml");
        let id = ["pkgid", "--locked", "--manifest-path"];
        let kube = output(Command::new("cargo").args(id).arg(manifest).arg("kube"));
        if let Some((_, version)) = kube.rsplit_once('@') {
            versions.insert("kube of kube-rs/".to_owned(), version.to_owned());
        }
        Self {
            commit: output(Command::new("git").args([
                "-C",
                env!("CARGO_MANIFEST_DIR"),
                "describe",
                "--always",
                "--dirty",
                "--abbrev=12",
                "--exclude=*",
            ])),
            date: Timestamp::now().strftime("%F %R").to_string(),
            kernel: format!(
                "{} {}",
                kernel.sysname().to_string_lossy(),
                kernel.release().to_string_lossy()
            ),
            processor: processor.unwrap_or_default(),
            cores: std::thread::available_parallelism().unwrap().get(),
            versions,
        }
    }
}

/// Returns the versions of Go and of the peer's main modules.
fn of_peer() -> impl Iterator<Item = (String, String)> {
    let text = output(
        Command::new("go")
            .args(["version", "-m"])
            .arg(program(Side::Tuned)),
    );
    let go = text.lines().next().and_then(|line| line.rsplit(' ').next());
    let go = go.map(|version| ("Go".to_owned(), version.to_owned()));
    let modules = text.lines().filter_map(|line| {
        let mut fields = line
            .split_whitespace()
            .skip_while(|field| *field != "dep")
            .skip(1);
        let (path, version) = (fields.next()?, fields.next()?);
        let is_named = ["sigs.k8s.io/controller-runtime", "k8s.io/client-go"].contains(&path);
        is_named.then(|| {
            (
                path.rsplit('/').next().unwrap().to_owned(),
                version.to_owned(),
            )
        })
    });
    go.into_iter().chain(modules.collect::<Vec<_>>())
}

/// Returns the standard output of a command.
fn output(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
