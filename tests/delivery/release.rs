//! The parts of a release: the multi-platform image, its signatures, the bill of materials, the manifest and the notes. All of
//! them name the same version.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use operator_testkit::cluster::{bound_command, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Child;

mod signatures;
mod sigstore;

const DEADLINE: Duration = Duration::from_secs(30);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A private registry, in a folder with image archives as Nix builds them: one layer with one file.
struct Registry {
    folder: TempDir,
    /// Architecture and layer digest of each archive.
    layers: [(&'static str, String); 2],
    address: String,
    _process: Child,
}

impl Registry {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let layers = ["amd64", "arm64"].map(|architecture| {
            let layer = archive(folder.path(), architecture, architecture);
            (architecture, layer)
        });
        let registry = json!({
            "version": "0.1",
            "log": {"formatter": "json"},
            "storage": {"filesystem": {"rootdirectory": folder.path().join("registry")}},
            "http": {"addr": "127.0.0.1:0"},
        });
        fs::write(folder.path().join("registry.yml"), registry.to_string()).unwrap();
        let log = folder.path().join("log");
        let mut serve = tokio::process::Command::from(bound_command("docker-registry"));
        let process = serve
            .args(["serve", "registry.yml"])
            .current_dir(folder.path())
            .stderr(fs::File::create(&log).unwrap())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let address = eventually(DEADLINE, "the registry listens", async || {
            let log = fs::read_to_string(&log).unwrap();
            let address = log
                .split_once("listening on ")
                .and_then(|(_, rest)| rest.split_once('"'));
            address.map(|(address, _)| address.to_owned()).ok_or(log)
        })
        .await;
        Self {
            folder,
            layers,
            address,
            _process: process,
        }
    }

    /// The image's tagged name.
    fn image(&self) -> String {
        format!(
            "{}/foo-controller:{}",
            self.address,
            env!("CARGO_PKG_VERSION")
        )
    }

    /// Runs deploy/push.sh. Returns the digest of the name that it prints.
    fn push(&self) -> String {
        let push = root().join("deploy/push.sh");
        let args = [
            &*self.image(),
            "amd64.tar",
            "arm64.tar",
            "--",
            "--dest-tls-verify=false",
        ];
        let pushed = self.run(push.to_str().unwrap(), &args);
        let name = format!("{}/foo-controller@", self.address);
        pushed.trim_end().strip_prefix(&name).unwrap().to_owned()
    }

    /// Runs a program in the folder, and returns its output.
    fn run(&self, program: &str, args: &[&str]) -> String {
        run(self.folder.path(), program, args)
    }
}

fn run(folder: &Path, program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.current_dir(folder).args(args).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{program} {args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Writes an image archive with one file that contains `program`. Returns the digest of its layer.
fn archive(folder: &Path, architecture: &str, program: &str) -> String {
    let tar = |to: &str, files: &[&str]| {
        run(
            folder,
            "tar",
            &[&["--create", "--file", to], files].concat(),
        );
    };
    fs::write(folder.join("program"), program).unwrap();
    tar("layer.tar", &["program"]);
    let layer = sha256(&fs::read(folder.join("layer.tar")).unwrap());
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": ["/program"]},
        "rootfs": {"type": "layers", "diff_ids": [layer]},
    });
    let manifest =
        json!([{"Config": "config.json", "RepoTags": ["it:1"], "Layers": ["layer.tar"]}]);
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("manifest.json"), manifest.to_string()).unwrap();
    let files = ["manifest.json", "config.json", "layer.tar"];
    tar(&format!("{architecture}.tar"), &files);
    layer
}

/// Returns a digest in the format of registries.
fn sha256(data: &[u8]) -> String {
    let mut digest = "sha256:".to_owned();
    for byte in ring::digest::digest(&ring::digest::SHA256, data).as_ref() {
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}

/// deploy/push.sh, which `nix run .#push` runs: a node of each architecture pulls its own image by the one name. The pulled
/// bytes are the pushed bytes.
#[tokio::test]
#[ignore = "takes Debian's skopeo, docker-registry and jq"]
async fn a_push_creates_an_index_of_the_architectures() {
    let registry = Registry::start().await;
    let pushed = registry.push();
    assert_eq!(registry.push(), pushed, "the same, pushed twice");

    let image = format!("docker://{}", registry.image());
    let inspect = ["inspect", "--tls-verify=false"];
    let index = registry.run("skopeo", &[&inspect[..], &["--raw", &image]].concat());
    assert_eq!(sha256(index.as_bytes()), pushed);
    let index: Value = serde_json::from_str(&index).unwrap();
    let manifests = index["manifests"].as_array().unwrap();
    let platforms: Vec<_> = manifests.iter().map(|each| &each["platform"]).collect();
    assert_eq!(
        json!(platforms),
        json!([{"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64"}])
    );
    for ((architecture, layer), entry) in registry.layers.iter().zip(manifests) {
        let pulled = format!("oci:{architecture}");
        let pull = ["copy", "--src-tls-verify=false", &image, &pulled];
        let options = ["--insecure-policy", "--override-arch", architecture];
        registry.run("skopeo", &[&options[..], &pull].concat());
        let blob = |digest: &Value| {
            let (_, digits) = digest.as_str().unwrap().split_once(':').unwrap();
            let path = Path::new(architecture).join("blobs/sha256").join(digits);
            let data = fs::read(registry.folder.path().join(&path)).unwrap();
            assert_eq!(sha256(&data), digest.as_str().unwrap());
            (path, data)
        };
        let (_, manifest) = blob(&entry["digest"]);
        assert_eq!(entry["size"], manifest.len());
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        let (_, config) = blob(&manifest["config"]["digest"]);
        let config: Value = serde_json::from_slice(&config).unwrap();
        assert_eq!(config["architecture"], *architecture);
        let [there] = &manifest["layers"].as_array().unwrap()[..] else {
            panic!("{manifest}");
        };
        let (path, _) = blob(&there["digest"]);
        let unpacked = registry.run("gzip", &["-dc", path.to_str().unwrap()]);
        assert_eq!(sha256(unpacked.as_bytes()), *layer);
    }
}

/// Otherwise the printed digest would belong to another name.
#[test]
fn a_push_without_a_tag_or_an_image_is_rejected() {
    for arguments in [
        ["localhost:5000/it", "a.tar"],
        ["registry.example/it:", "a.tar"],
        ["registry.example/it:1@sha256:0", "a.tar"],
        ["registry.example/it:1", "--"],
    ] {
        let push = root().join("deploy/push.sh");
        let output = Command::new(push).args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("usage: push.sh "), "{said}");
    }
}

/// Returns the only command in docs/operations.md that begins like this.
fn documented(begin: &str) -> String {
    let text = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let begin = format!("$ {begin}");
    let mut lines = text.lines().filter(|line| line.starts_with(&begin));
    let (line, more) = (lines.next().unwrap(), lines.next());
    assert_eq!(more, None);
    line[2..].to_owned()
}

/// nix/sbom.sh, which `nix build .#sbom` runs. The result lists the program's dependencies, each with its license and the
/// checksum of Cargo.lock, and no dependency of tests. It is reproducible.
#[test]
#[ignore = "takes Debian's jq"]
fn the_bill_of_materials_lists_the_shipped_dependencies() {
    let toml = |path: &str| -> toml::Table {
        toml::from_str(&fs::read_to_string(root().join(path)).unwrap()).unwrap()
    };
    let lock = toml("Cargo.lock");
    let locked: BTreeMap<_, _> = lock["package"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| {
            let sum = package.get("checksum").map(|sum| sum.as_str().unwrap());
            (
                (
                    package["name"].as_str().unwrap(),
                    package["version"].as_str().unwrap(),
                ),
                sum,
            )
        })
        .collect();
    let manifests = ["Cargo.toml", "crates/runtime/Cargo.toml"].map(toml);
    let direct = |section: &str| -> BTreeSet<String> {
        let sections = manifests.iter().map(|manifest| &manifest[section]);
        let tables = sections.map(|section| section.as_table().unwrap());
        tables.flat_map(|table| table.keys().cloned()).collect()
    };
    for target in ["x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"] {
        let made = || run(root(), "nix/sbom.sh", &[target]);
        let text = made();
        assert_eq!(text, made());
        let sbom: Value = serde_json::from_str(&text).unwrap();
        let program = &sbom["metadata"]["component"];
        assert_eq!(program["name"], env!("CARGO_PKG_NAME"));
        assert_eq!(program["version"], env!("CARGO_PKG_VERSION"));
        let mut names = BTreeSet::new();
        for crate_ in sbom["components"].as_array().unwrap() {
            let text = |field: &str| crate_[field].as_str().unwrap();
            let sum = locked[&(text("name"), text("version"))];
            assert_eq!(crate_["hashes"][0]["content"].as_str(), sum, "{crate_}");
            let license = crate_["licenses"][0]["expression"].as_str().unwrap();
            assert!(!license.is_empty() && !license.contains('/'), "{crate_}");
            names.insert(text("name").to_owned());
        }
        let runs: BTreeSet<_> = direct("dependencies");
        let missing: Vec<_> = runs
            .difference(&names)
            // A procedural macro, which is not linked.
            .filter(|name| *name != "async-trait")
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
        let mut tests: BTreeSet<_> = direct("dev-dependencies");
        let xtask = toml("xtask/Cargo.toml");
        tests.extend(xtask["dependencies"].as_table().unwrap().keys().cloned());
        for test in [
            "clap_complete",
            "clap_mangen",
            "proptest",
            "stateright",
            "tempfile",
        ] {
            assert!(tests.contains(test) && !names.contains(test), "{test}");
        }
    }
}

/// The manifests, the documentation and the changelog name the version of the program. In the changelog it is the newest
/// release, or the first one to come.
#[test]
fn manifests_docs_and_changelog_have_the_same_version() {
    let version = env!("CARGO_PKG_VERSION");
    let mut named = 0;
    for file in [
        "README.md",
        "docs/operations.md",
        "deploy/base/deployment.yaml",
        "deploy/integrations/kyverno.yaml",
        "tests/delivery/manifests/docs/commands.rs",
    ] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        for begin in [
            "foo-controller:",
            "newTag: ",
            "-a version=",
            "--version ",
            "refs/tags/v",
            "annotations.version == '",
        ] {
            for rest in text.split(begin).skip(1) {
                let is_version = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
                let end = rest.find(|c| !is_version(c)).unwrap_or(rest.len());
                let said = rest[..end].trim_end_matches('.');
                if said.starts_with(|c: char| c.is_ascii_digit()) {
                    assert_eq!(said, version, "{file}");
                    named += 1;
                }
            }
        }
    }
    assert!(named >= 18, "{named}");

    let changes = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let mut sections = changes.split("\n## ").skip(1);
    let unreleased = sections.next().unwrap();
    assert!(unreleased.starts_with("Unreleased\n"));
    if let Some(newest) = sections.next() {
        let (number, date) = newest.lines().next().unwrap().split_once(" - ").unwrap();
        assert_eq!(number, version);
        let date: Vec<_> = date.split('-').map(str::len).collect();
        assert_eq!(date, [4, 2, 2], "{newest}");
    } else {
        let first = format!("The first release, {version}, is made of this.");
        assert!(unreleased.contains(&first), "{unreleased}");
    }
}

/// A copy of the files that deploy/release.sh reads.
struct Copy {
    folder: TempDir,
    path: String,
    image: String,
    /// Options of cosign that verify the signer.
    signer: &'static str,
}

impl Copy {
    fn new() -> Self {
        let build = root().join("crates/testkit/src/cluster/build.sh");
        let bin = run(root(), build.to_str().unwrap(), &[]);
        let folder = tempfile::tempdir().unwrap();
        let from = ["deploy", "config", "Cargo.toml", "CHANGELOG.md"].map(|name| root().join(name));
        let from: Vec<_> = from.iter().map(|path| path.to_str().unwrap()).collect();
        let to = folder.path().to_str().unwrap();
        run(root(), "cp", &[&["-r"], &from[..], &[to]].concat());
        Self {
            folder,
            path: format!("{}:{}", bin.trim_end(), std::env::var("PATH").unwrap()),
            image: format!("registry.example/it@{}", sha256(b"it")),
            signer: "",
        }
    }

    /// Runs deploy/release.sh. Returns whether it succeeded, and its error.
    fn release(&self) -> (bool, String) {
        let output = Command::new("deploy/release.sh")
            .args([&self.image, "."])
            .current_dir(self.folder.path())
            .env("RELEASE_LINKS", "https://git.example/blob/it/")
            .env("RELEASE_SIGNER", self.signer)
            .env("PATH", &self.path)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.success(), said)
    }

    fn exists(&self, name: &str) -> bool {
        self.folder.path().join(name).exists()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    /// Adds a section for the version to the changelog.
    fn describe(&self) {
        let heading = format!("## {} - ", env!("CARGO_PKG_VERSION"));
        let released = format!(
            "## Unreleased\n\n{heading}2026-01-01\n\n[All](docs/foo.md) of it.\n\n## 0.0.1 - 2025-01-01\n"
        );
        let changes = self.read("CHANGELOG.md").replace(&heading, "## 0 - ");
        self.write(
            "CHANGELOG.md",
            &changes.replace("## Unreleased\n", &released),
        );
    }

    /// Returns the objects of a manifest.
    fn objects(&self, name: &str) -> Vec<Value> {
        serde_saphyr::from_multiple(&self.read(name)).unwrap()
    }
}

/// An operator whose CRD names the conversion webhook has a manifest of it, which the notes install first.
#[test]
fn a_release_with_a_conversion_has_its_webhook() {
    let copy = Copy::new();
    copy.describe();
    let crd = copy.read("deploy/crd.yaml") + "  conversion:\n    strategy: Webhook\n";
    copy.write("deploy/crd.yaml", &crd);
    let (done, said) = copy.release();
    assert!(done, "{said}");
    let objects = copy.objects("conversion.yaml");
    let of = |kind: &str| {
        objects
            .iter()
            .find(|object| object["kind"] == kind)
            .unwrap()
    };
    // A deletion of the webhook must not delete the controller.
    assert!(objects.iter().all(|object| object["kind"] != "Namespace"));
    let containers = &of("Deployment")["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["image"], *copy.image);
    let notes = copy.read("notes.md");
    let wait = documented("kubectl wait -n foo-system --for=condition=Available ");
    let create = "kubectl create namespace foo-system     # on a new cluster";
    let install = format!(
        "\n$ {create}\n$ kubectl apply -f conversion.yaml\n$ {wait}\n$ kubectl apply -f install.yaml\n"
    );
    assert!(notes.contains(&install), "{notes}");
    let verify = documented("cosign verify-blob --key ").replace("install", "conversion");
    assert!(notes.contains(&format!("\n$ {verify}\n")), "{notes}");
    // The webhook is in the same namespace, and Foos cannot be read without it.
    assert!(notes.contains("--replicas=0\n"), "{notes}");
    assert!(!notes.contains("install.yaml -l "), "{notes}");
}

/// The commands in the notes of a keyless release name the workflow instead of a key.
#[test]
fn a_keyless_release_is_verified_without_a_key() {
    let mut copy = Copy::new();
    copy.signer = "--certificate-identity=workflow --certificate-oidc-issuer=issuer";
    copy.describe();
    let (done, said) = copy.release();
    assert!(done, "{said}");
    let notes = copy.read("notes.md");
    for command in ["verify", "verify-blob"] {
        let line = format!("\n$ cosign {command} {} ", copy.signer);
        assert!(notes.contains(&line), "{notes}");
    }
    // Versions 3.0.0 to 3.0.2 ignore `-a`.
    assert!(notes.contains("with cosign 3.0.5 or later"), "{notes}");
    assert!(!notes.contains("cosign.pub"), "{notes}");

    // The notes may be changed with the files. So the page that installs a release names the signer itself.
    let page = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let (_, section) = page.split_once("\n## Install a release\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let identity = "https://github.com/OWNER/REPOSITORY/.github/workflows/release.yml@refs/tags/v";
    for command in ["verify", "verify-blob"] {
        let line = format!("\n$ cosign {command} --certificate-identity={identity}");
        let (_, rest) = section.split_once(&line).unwrap();
        assert!(rest.starts_with(env!("CARGO_PKG_VERSION")), "{rest}");
    }
}

/// deploy/release.sh, which the workflow of a tag runs: it writes the manifest that installs the image by digest, and the
/// notes. It fails without a section in the changelog.
#[test]
fn a_release_has_its_notes_and_manifest() {
    let copy = Copy::new();
    let heading = format!("## {} - ", env!("CARGO_PKG_VERSION"));
    let changes = copy.read("CHANGELOG.md").replace(&heading, "## 0 - ");
    copy.write("CHANGELOG.md", &changes);
    let (done, said) = copy.release();
    assert!(!done && said.contains("has no section"), "{said}");
    assert!(copy.exists("install.yaml") && !copy.exists("notes.md"));
    assert!(!copy.exists("conversion.yaml"));

    copy.describe();
    let (done, said) = copy.release();
    assert!(done, "{said}");
    let notes = copy.read("notes.md");
    let changes = "[All](https://git.example/blob/it/docs/foo.md) of it.\n";
    assert!(notes.trim_start().starts_with(changes), "{notes}");
    let tag = concat!(
        "registry.example/foo-controller:",
        env!("CARGO_PKG_VERSION")
    );
    let verify = documented("cosign verify --key ");
    let (_, named) = documented("cosign verify --certificate-identity=")
        .split_once(" $(")
        .map(|(before, named)| (before.to_owned(), format!("$({named}")))
        .unwrap();
    let verify = verify.replace(tag, &named);
    let of_chart = documented("cosign verify-blob --key ").replace(
        "install.yaml",
        concat!("foo-controller-", env!("CARGO_PKG_VERSION"), ".tgz"),
    );
    let delete_foos = documented("kubectl delete foos ");
    let delete_foos = delete_foos.split_once(" #").unwrap().0.trim();
    for command in [
        verify,
        documented("cosign verify-blob --key "),
        of_chart,
        delete_foos.to_owned(),
        "kubectl delete --ignore-not-found -f install.yaml".to_owned(),
        documented("helm install foo-controller foo-controller-"),
        documented("kubectl delete --ignore-not-found -f install.yaml -l "),
    ] {
        assert!(notes.contains(&format!("\n$ {command}\n")), "{notes}");
    }
    let objects = copy.objects("install.yaml");
    let of = |kind: &str| {
        let objects = objects.iter().filter(|object| object["kind"] == kind);
        objects.collect::<Vec<_>>()
    };
    assert_eq!(of("CustomResourceDefinition").len(), 1);
    let [deployment] = &of("Deployment")[..] else {
        panic!("{objects:?}");
    };
    let containers = &deployment["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["image"], *copy.image);
}
