//! Every command of the documentation is run here, or is listed with the CI step that runs it.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::Stdio,
    time::Duration,
};

use operator_testkit::cluster::{Cluster, bound_command};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::{Document, documents};
use crate::delivery::manifests::{root, with_controllers};

/// Time limit of a block: the longest timeout of a `kubectl wait` in it.
const DEADLINE: Duration = Duration::from_mins(5);

/// Commands that [`commands_work`] does not run, with the file and the line in it that runs them.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("make demo", ".ci/run", " make demo\n"),
    ("DEMO_CLUSTER=own make demo", ".ci/run", "DEMO_CLUSTER=own"),
    ("make test", ".ci/run", "make test"),
    (
        "make test KUBERNETES=1.33",
        ".github/workflows/kubernetes.yml",
        "make test KUBERNETES=",
    ),
    ("make e2e", ".ci/run", "make e2e"),
    ("make bench", ".ci/run", "make bench"),
    (
        "make bench ARGS=--failover",
        "Makefile",
        "$(MAKE) bench ARGS=--failover",
    ),
    ("make nix-check", ".ci/run", "make nix-check"),
    (
        "make fork NAME=tea-controller KIND=Teapot GROUP=example.org",
        "tests/fork.sh",
        "make fork NAME=",
    ),
    (
        "cargo test --locked --lib --package foo-controller",
        "Makefile",
        "cargo test --locked --workspace $(TESTS)",
    ),
    (
        "make generate",
        "xtask/src/generate/mod.rs",
        "run `make generate`",
    ),
    ("nix flake check", "tests/nix/check.sh", "nix flake check"),
    ("nix build .#crds", "flake.nix", "${packages.crds}"),
    (
        "kubectl wait",
        "tests/delivery/node.rs",
        "kubectl wait --for",
    ),
    (
        "kubectl scale foo/x",
        "tests/delivery/node.rs",
        "kubectl scale foo/",
    ),
    (
        "kubectl scale foo/x --replicas=1",
        "tests/delivery/node.rs",
        "kubectl scale foo/",
    ),
    (
        "kubectl exec -n foo-system POD -- /proc/1/exe reload",
        "tests/delivery/node.rs",
        "kubectl exec -n {NAMESPACE} {name} -- /proc/1/exe reload",
    ),
    (
        "kubectl exec -n foo-system POD -- /proc/1/exe doctor",
        "tests/delivery/node.rs",
        "kubectl exec -n {NAMESPACE} {name} -- /proc/1/exe doctor",
    ),
    (
        "kubectl rollout restart",
        "tests/delivery/node.rs",
        "kubectl rollout restart deployment/",
    ),
    (
        "kubectl rollout undo deployment/foo-controller -n foo-system",
        "tests/delivery/node.rs",
        "kubectl rollout undo deployment/{NAME} -n {NAMESPACE}",
    ),
    (
        "kubectl logs -n foo-system POD",
        "tests/delivery/node.rs",
        "kubectl logs -n {NAMESPACE} {}",
    ),
    (
        "kubectl get --raw '/api/v1/namespaces/foo-system/pods/POD:8080/proxy/readyz?verbose'",
        "tests/delivery/node.rs",
        "kubectl get --raw {path}/readyz?verbose",
    ),
    (
        "kubectl get --raw /api/v1/namespaces/foo-system/pods/POD:8080/proxy/debug/state",
        "tests/delivery/node.rs",
        "kubectl get --raw {path}/debug/state",
    ),
    (
        "kubectl get --raw '/api/v1/namespaces/foo-system/pods/POD:8080/proxy/debug/state?object=default/web'",
        "tests/process/state/object.rs",
        "/debug/state?object={object}",
    ),
    (
        "kubectl exec -n foo-system POD -- /proc/1/exe doctor --object=default/web",
        "tests/process/state/object.rs",
        "--object={}/{foo}",
    ),
    (
        "cargo run --locked -- plan --config=config/foo-controller.toml",
        "tests/process/plan.rs",
        ".arg(\"plan\")",
    ),
    (
        "kubectl delete foos --all --all-namespaces --cascade=foreground",
        "tests/delivery/manifests/uninstall.rs",
        "sh_within(&cluster, &all, LIMIT)",
    ),
    (
        "kubectl delete --ignore-not-found -k deploy",
        "tests/delivery/manifests/uninstall.rs",
        "sh_within(&cluster, &all, LIMIT)",
    ),
    (
        "kubectl delete crd foos.samplecontroller.k8s.io",
        "tests/delivery/node/families.rs",
        "kubectl delete crd foos.samplecontroller.k8s.io",
    ),
    (
        "kubectl delete --ignore-not-found -f install.yaml",
        "tests/delivery/manifests.rs",
        "\"delete --ignore-not-found -f {manifest} --timeout=60s\"",
    ),
    (
        "kubectl delete --ignore-not-found -f install.yaml -l app.kubernetes.io/name=foo-controller",
        "tests/delivery/manifests.rs",
        "\"delete --ignore-not-found -f {manifest} -l app.kubernetes.io/name=foo-controller --timeout=60s\"",
    ),
    (
        "kubectl diff -k",
        "tests/delivery/manifests/names.rs",
        "\"diff -k {}\"",
    ),
    (
        "kubectl delete -k",
        "tests/delivery/manifests/names.rs",
        "delete --ignore-not-found -k {folder}",
    ),
    (
        "kubectl patch configmap argocd-cm --namespace argocd --patch-file deploy/integrations/argo-cd.yaml",
        "tests/foo/gitops.rs",
        "&[\"patch\", \"configmap\", \"argocd-cm\", &patch]",
    ),
    (
        "kubectl foo doctor --lease-namespace=foo-system",
        "tests/process/doctor.rs",
        "[\"doctor\", \"--lease-namespace=foo-system\"]",
    ),
    (
        "kubectl rollout pause",
        "tests/foo/conditions.rs",
        "\"rollout\", \"pause\"",
    ),
    (
        "kubectl get foo NAME -o jsonpath='{.status.conditions[?(@.type==\"Ready\")].message}'",
        "tests/foo/conditions.rs",
        "jsonpath={.status.conditions[?(@.type==\"Ready\")].message}",
    ),
    (
        "kubectl annotate foo/x retry=1",
        "tests/foo/mended.rs",
        "[(\"annotate\", \"annotated\")",
    ),
    (
        "kubectl annotate foo web samplecontroller.k8s.io/paused=true",
        "tests/foo/control.rs",
        "format!(\"{PAUSED}=true\")",
    ),
    (
        "kubectl wait foo/web --for=condition=Paused",
        "tests/foo/control.rs",
        "\"--for=condition=Paused\"",
    ),
    (
        "kubectl annotate foo web samplecontroller.k8s.io/paused-",
        "tests/foo/control.rs",
        "format!(\"{PAUSED}-\")",
    ),
    (
        "kubectl annotate --overwrite foo web samplecontroller.k8s.io/reconcile-requested-at=$(date +%s)",
        "tests/foo/control.rs",
        "format!(\"{REQUESTED_AT}={token}\")",
    ),
    (
        "kubectl get foo web -o jsonpath='{.status.lastHandledReconcileAt}'",
        "tests/foo/control.rs",
        ".last_handled_reconcile_at",
    ),
    (
        "kubectl label foo web samplecontroller.k8s.io/installation=canary",
        "tests/delivery/manifests/names.rs",
        "label foo a -n team-a {INSTALLATION}=canary",
    ),
    (
        "kubectl label foo web samplecontroller.k8s.io/installation-",
        "tests/delivery/manifests/names.rs",
        "label foo a -n team-a {INSTALLATION}-",
    ),
    (
        "kubectl create namespace foo-system",
        "tests/leadership/takeover.rs",
        "cluster.namespace(\"first\")",
    ),
    (
        "kubectl create -f - <<'EOF'",
        "tests/leadership/takeover.rs",
        "recipe.split_once(\"<<'EOF'",
    ),
    (
        "deploy/package.sh registry.example/foo-controller@DIGEST .",
        "tests/delivery/release/signatures.rs",
        "documented(\"deploy/package.sh \")",
    ),
    (
        "helm push foo-controller-0.1.0.tgz oci://registry.example/charts",
        "tests/delivery/release/signatures.rs",
        "documented(\"helm push \")",
    ),
    (
        "helm install foo-controller oci://registry.example/charts/foo-controller --version 0.1.0 --namespace foo-system \
         --create-namespace --wait",
        "tests/delivery/release/signatures.rs",
        "documented(\"helm install foo-controller oci:\")",
    ),
    (
        "helm install foo-controller deploy/chart --namespace foo-system --create-namespace --wait \
         --set image.repository=registry.example/foo-controller",
        "tests/delivery/manifests/chart.rs",
        "helm.documented(\"install\"",
    ),
    (
        "helm upgrade foo-controller deploy/chart --namespace foo-system --wait --reset-then-reuse-values",
        "tests/delivery/manifests/chart.rs",
        "helm.documented(\"upgrade\"",
    ),
    (
        "helm rollback foo-controller --namespace foo-system --wait",
        "tests/delivery/manifests/chart.rs",
        "helm.documented(\"rollback\"",
    ),
    (
        "helm uninstall foo-controller --namespace foo-system --wait",
        "tests/delivery/manifests/chart.rs",
        "helm.documented(\"uninstall\"",
    ),
    ("nix build .#sbom", "tests/nix/check.sh", " .#sbom)"),
    ("nix build", "tests/nix/check.sh", "nix flake check"),
    ("nix build .#image", "tests/nix/image.sh", "\".#image\""),
    (
        "sudo ctr --namespace k8s.io images import result",
        "tests/node/node.sh",
        "ctr -n k8s.io images import",
    ),
    (
        "COSIGN_KEY=cosign.key deploy/sign.sh registry.example/foo-controller@DIGEST .",
        "tests/delivery/release/signatures.rs",
        "documented(\"COSIGN_KEY=cosign.key deploy/sign.sh registry.example/foo-controller@\")",
    ),
    (
        "COSIGN_KEY=cosign.key deploy/sign.sh install.yaml sbom.cdx.json sbom-arm64.cdx.json",
        "tests/delivery/release/signatures.rs",
        "documented(\"COSIGN_KEY=cosign.key deploy/sign.sh install.yaml \")",
    ),
    (
        "COSIGN_KEY=cosign.key deploy/sign.sh registry.example/charts/foo-controller@DIGEST",
        "tests/delivery/release/signatures.rs",
        "documented(\"COSIGN_KEY=cosign.key deploy/sign.sh registry.example/charts/\")",
    ),
    (
        "cosign verify --key cosign.pub --insecure-ignore-tlog -a version=0.1.0 registry.example/foo-controller:0.1.0",
        "tests/delivery/release/signatures.rs",
        "documented(\"cosign verify --key \")",
    ),
    (
        "cosign verify-attestation --key cosign.pub --insecure-ignore-tlog --type slsaprovenance1 registry.example/foo-controller:0.1.0",
        "tests/delivery/release/signatures.rs",
        "attestation(\"slsaprovenance1\")",
    ),
    (
        "cosign verify-attestation --key cosign.pub --insecure-ignore-tlog --type cyclonedx registry.example/foo-controller@DIGEST",
        "tests/delivery/release/signatures.rs",
        "attestation(\"cyclonedx\")",
    ),
    (
        "skopeo inspect --raw docker://registry.example/foo-controller:0.1.0 | jq --raw-output '.manifests[] | .platform.architecture, .digest'",
        "tests/delivery/release/signatures.rs",
        "documented(\"skopeo inspect --raw \")",
    ),
    (
        "cosign verify-blob --key cosign.pub --insecure-ignore-tlog --bundle install.yaml.sigstore.json install.yaml",
        "tests/delivery/release/signatures.rs",
        "documented(\"cosign verify-blob --key \")",
    ),
    (
        "cosign verify --certificate-identity=https://github.com/OWNER/REPOSITORY/.github/workflows/release.yml@refs/tags/v0.1.0 --certificate-oidc-issuer=https://token.actions.githubusercontent.com -a version=0.1.0 $(sed -n 's/^ *image: //p' install.yaml)",
        "tests/delivery/release/signatures.rs",
        "documented(\"cosign verify --certificate-identity=\")",
    ),
    (
        "cosign verify-blob --certificate-identity=https://github.com/OWNER/REPOSITORY/.github/workflows/release.yml@refs/tags/v0.1.0 --certificate-oidc-issuer=https://token.actions.githubusercontent.com --bundle install.yaml.sigstore.json install.yaml",
        "tests/delivery/release/signatures.rs",
        "documented(\"cosign verify-blob --certificate-identity=\")",
    ),
    (
        "cosign verify-attestation --certificate-identity=https://github.com/OWNER/REPOSITORY/.github/workflows/release.yml@refs/tags/v0.1.0 --certificate-oidc-issuer=https://token.actions.githubusercontent.com --type slsaprovenance1 registry.example/foo-controller:0.1.0",
        "tests/delivery/release/signatures.rs",
        "keyless_attestation(\"slsaprovenance1\")",
    ),
    (
        "cosign verify-attestation --certificate-identity=https://github.com/OWNER/REPOSITORY/.github/workflows/release.yml@refs/tags/v0.1.0 --certificate-oidc-issuer=https://token.actions.githubusercontent.com --type cyclonedx registry.example/foo-controller@DIGEST",
        "tests/delivery/release/signatures.rs",
        "keyless_attestation(\"cyclonedx\")",
    ),
    (
        "helm install foo-controller foo-controller-0.1.0.tgz --namespace foo-system --create-namespace --wait",
        "tests/delivery/release/signatures.rs",
        "documented(\"helm install foo-controller foo-controller-\")",
    ),
];

/// Commands that cannot be run here, and the reason.
const NOWHERE: &[(&str, &str)] = &[
    (
        "kubectl apply -f install.yaml",
        "takes a release; what is in it is `deploy`, which is applied (tests/delivery/node.rs)",
    ),
    (
        "kubectl apply -f conversion.yaml",
        "takes a release of an operator with two versions; what is in it is `deploy/conversion`, which is applied (conversion.rs)",
    ),
    (
        "kubectl wait -n foo-system --for=condition=Available --timeout=5m deployment/foo-controller-conversion",
        "likewise; there is no cert-manager",
    ),
    (
        "DEMO_CLUSTER=current make demo",
        "the script with the cluster that CI has",
    ),
    (
        "nix build .#image-arm64",
        "evaluated; there is no cross compiler",
    ),
    ("nix build .#image-stream", "evaluated; there is no docker"),
    ("./result | docker load", "there is no docker"),
    (
        "nix run .#crds",
        "evaluated; the CRD that it prints is checked",
    ),
    ("nix develop", "evaluated"),
    ("nix fmt", "evaluated; the formatting is checked"),
    (
        "kind load image-archive \"$(readlink -f result)\"",
        "there is no kind",
    ),
    (
        "k3d image import \"$(readlink -f result)\"",
        "there is no k3d",
    ),
    (
        "sed -n '/^## A Service/,/^## Another/{/^```diff/,/^```/{//!p}}' docs/make-it-yours.md | git apply",
        "it changes this tree",
    ),
    (
        "sed -n '/^## A second kind/,/^### Kinds/{/^```diff/,/^```/{//!p}}' docs/make-it-yours.md | git apply",
        "it changes this tree",
    ),
    ("cargo fmt", "it changes this tree"),
    ("cargo check", "clippy checks more"),
    (
        "nix run .#push -- registry.example/foo-controller:0.1.0",
        "there is no nixpkgs; deploy/push.sh, which it runs, has a test of its own",
    ),
];

/// A command with its documented output.
struct Command {
    line: String,
    comment: String,
    output: Vec<String>,
}

impl Command {
    fn switch(&self) -> Option<Switch> {
        match self.comment.split_once(' ')? {
            ("to", name) => Some(Switch::To(name.to_owned())),
            ("without", name) => Some(Switch::Without(name.to_owned())),
            _ => None,
        }
    }
}

/// Returns the commands of each console block.
fn blocks() -> Vec<Vec<Command>> {
    let blocks = documents().into_iter().flat_map(|document| document.blocks);
    let console = blocks.filter(|(language, _)| language == "console");
    console.map(|(_, text)| commands(&text)).collect()
}

fn commands(block: &str) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    for line in block.replace("\\\n", "").lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(line), _) => {
                let (line, comment) = line.split_once(" # ").unwrap_or((line, ""));
                commands.push(Command {
                    line: line.split_whitespace().collect::<Vec<_>>().join(" "),
                    comment: comment.trim().to_owned(),
                    output: Vec::new(),
                });
            }
            (None, Some(command)) => command.output.push(line.to_owned()),
            (None, None) => panic!("{line:?} is no command"),
        }
    }
    commands
}

/// Purpose of a command of docs/operations.md, "Switch overlays or components".
pub enum Switch {
    /// Adds an overlay or a component.
    To(String),
    /// Removes a component.
    Without(String),
}

/// Returns the inline code that begins like a command.
fn inline() -> Vec<String> {
    let code = documents()
        .into_iter()
        .flat_map(|Document { inline, .. }| inline);
    let lines = code.map(|code| code.split_whitespace().collect::<Vec<_>>().join(" "));
    let begins = ["kubectl ", "make ", "nix ", "DEMO_CLUSTER=", "./"];
    lines
        .filter(|line| begins.iter().any(|begin| line.starts_with(begin)))
        .collect()
}

/// Returns the commands of the switches with their purpose.
pub fn switches() -> Vec<(Switch, String)> {
    let commands = blocks().into_iter().flatten();
    commands
        .filter_map(|command| Some((command.switch()?, command.line)))
        .collect()
}

/// Runs a shell script in the project's folder. `kubectl` uses this cluster, and `cargo` is replaced by a script that runs the
/// built program. All processes of the script end with this call.
pub async fn sh(cluster: &Cluster, script: &str) -> String {
    sh_within(cluster, script, DEADLINE).await
}

/// Like [`sh`], with another time limit.
pub async fn sh_within(cluster: &Cluster, script: &str, limit: Duration) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    // If this process is killed, the timeout ends the controller.
    let cargo = format!(
        "case $* in 'build --locked') exit ;; 'run --locked -- '*) shift 3 ;; *) exit 1 ;; esac
        exec timeout --foreground {} {} \"$@\"",
        DEADLINE.as_secs(),
        env!("CARGO_BIN_EXE_foo-controller"),
    );
    stand_in(&folder, "cargo", &cargo);
    let bin = cluster.ready().bin.display();
    let outer = std::env::var("PATH").unwrap();
    let mut command = bound_command("bash");
    command
        .args(["-e", "-c", script])
        .current_dir(root())
        .env("PATH", format!("{path}:{bin}:{outer}"))
        // This may run within make.
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("HOME", &path)
        .env("FOO_CONTROLLER__HTTP__ADDR", "127.0.0.1:0")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(fs::File::create(folder.path().join("output")).unwrap())
        .stderr(fs::File::create(folder.path().join("errors")).unwrap());
    let child = tokio::process::Command::from(command).spawn().unwrap();
    let _group = Group(child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())));
    let mut child = child;
    let status = tokio::time::timeout(limit, child.wait()).await;
    let said = |file: &str| fs::read_to_string(folder.path().join(file)).unwrap();
    let status = status
        .unwrap_or_else(|_| panic!("{script}: {}", said("errors")))
        .unwrap();
    assert!(status.success(), "{script}: {}", said("errors"));
    said("output")
}

/// Writes a program for [`sh`].
fn stand_in(folder: &TempDir, name: &str, script: &str) {
    let file = folder.path().join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A process group that is killed on drop.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Runs each block as a user would paste it, and compares the output with the documented one.
#[tokio::test]
async fn commands_work() {
    let cluster = with_controllers().await;
    let mut known: BTreeSet<&str> = NOWHERE.iter().map(|(line, _)| *line).collect();
    for (line, file, runs) in ELSEWHERE {
        let text = fs::read_to_string(root().join(file)).unwrap();
        assert!(text.contains(runs), "{file} does not run {line:?}");
        known.insert(line);
    }
    let mut unseen = known.clone();
    let mut inline = inline();
    unseen.retain(|line| !inline.iter().any(|there| there == line));
    inline.retain(|line| !known.contains(&**line));
    for commands in blocks() {
        let mut script = String::new();
        let mut shown = Vec::new();
        for command in &commands {
            unseen.remove(&*command.line);
            inline.retain(|line| *line != command.line);
            // Another test runs the switches.
            if !known.contains(&*command.line) && command.switch().is_none() {
                let program = command.line.split(' ').next().unwrap();
                let runnable =
                    ["kubectl", "cargo"].contains(&program) || command.line == "make run &";
                assert!(runnable, "nothing runs {:?}", command.line);
                script.push_str(&command.line);
                script.push('\n');
                shown.extend(command.output.first());
            }
        }
        let output = sh(&cluster, &script).await;
        for header in shown {
            let words = |line: &str| {
                line.split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            let there = output.lines().any(|line| words(line) == words(header));
            assert!(there, "{header:?} is not in {output}");
        }
    }
    assert!(inline.is_empty(), "nothing runs {inline:?}");
    assert!(
        unseen.is_empty(),
        "no document has them any more: {unseen:?}"
    );

    let clean = "kubectl delete clusterrolebinding prometheus-foo-controller && kubectl delete -f deploy/crd.yaml --timeout=60s";
    sh(&cluster, clean).await;
}

/// tests/require.sh, which the first commands of README run first.
#[test]
fn missing_tools_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let require = || {
        let mut command = std::process::Command::new(root().join("tests/require.sh"));
        let output = command.env("PATH", folder.path()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    for name in ["cargo", "cc", "make", "chrt", "sha256sum"] {
        stand_in(&folder, name, "");
    }
    stand_in(&folder, "uname", "echo Linux");
    stand_in(&folder, "bash", "echo 3"); // the version of macOS
    let missing = "not on PATH, but needed: flock bash-4\n";
    assert_eq!(require(), (Some(1), missing.to_owned()));
    stand_in(&folder, "flock", "");
    stand_in(&folder, "bash", "echo 5");
    assert_eq!(require(), (Some(0), String::new()));
    for file in ["tests/demo.sh", "Makefile"] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        assert!(
            text.contains("\ttests/require.sh\n") || text.contains("\ntests/require.sh\n"),
            "{file}"
        );
    }
}
