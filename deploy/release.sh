#!/usr/bin/env bash
# release.sh IMAGE FOLDER: writes the files of a release into FOLDER. Needs kubectl.
# - install.yaml: deploy/ with IMAGE (REGISTRY/NAME@DIGEST, as printed by push.sh).
# - notes.md: the section of CHANGELOG.md for the version in Cargo.toml, and the commands to verify, install and uninstall the release. RELEASE_LINKS,
#   if set, is put before links into this repository. Without such a section, only install.yaml is written, and the script fails.
set -euo pipefail

[ $# = 2 ] && [[ $1 =~ ^.+/.+@sha256:[0-9a-f]{64}$ ]] || { echo "usage: release.sh REGISTRY/NAME@DIGEST FOLDER" >&2; exit 2; }
image=$1 folder=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

overlay=$(mktemp -d)
trap 'rm -rf "$overlay"' EXIT
cat >"$overlay/kustomization.yaml" <<EOF
resources: ["$(realpath --relative-to "$overlay" deploy)"]
images: [{name: foo-controller, newName: "${image%@*}", digest: "${image#*@}"}]
EOF
kubectl kustomize "$overlay" >"$folder/install.yaml"

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
notes=$(awk -v heading="## $version - " '/^## / { ours = index($0, heading) == 1; next } ours' CHANGELOG.md)
[ -n "$notes" ] || { echo "release.sh: no notes: CHANGELOG.md has no section \"## $version - DATE\"" >&2; exit 1; }
sed -E "s#\]\(([^):]+)\)#](${RELEASE_LINKS-}\1)#g" <<<"$notes" >"$folder/notes.md"
cat >>"$folder/notes.md" <<EOF

To install it, with cosign 3 (the signatures are Sigstore bundles, which version 2 does not find) and
[.github/cosign.pub](${RELEASE_LINKS-}.github/cosign.pub) as \`cosign.pub\`:

\`\`\`console
$ cosign verify-blob --key cosign.pub --insecure-ignore-tlog --bundle install.yaml.sigstore.json install.yaml
$ cosign verify --key cosign.pub --insecure-ignore-tlog -a version=$version $image
$ kubectl apply -f install.yaml
\`\`\`

To uninstall it, delete the Foos first, and with each Foo its Deployment and pods. The first command waits for them. Without it,
Deployments may stay and run on.

\`\`\`console
$ kubectl delete foos --all --all-namespaces --cascade=foreground
$ kubectl delete --ignore-not-found -f install.yaml
\`\`\`

To keep the Foos and their Deployments, delete everything except the CRD instead:

\`\`\`console
$ kubectl delete --ignore-not-found -f install.yaml -l app.kubernetes.io/name=foo-controller
\`\`\`
EOF
