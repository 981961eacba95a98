#!/usr/bin/env bash
# release.sh IMAGE FOLDER: writes the files of a release into FOLDER. Needs kubectl.
# - install.yaml: deploy/ with IMAGE (REGISTRY/NAME@DIGEST, as printed by push.sh).
# - conversion.yaml: deploy/conversion with IMAGE, only if the CRD names the conversion webhook. The notes install it first.
# - notes.md: the section of CHANGELOG.md for the version in Cargo.toml, and the commands to verify, install and uninstall the
#   release. Without such a section, only install.yaml is written, and the script fails. RELEASE_LINKS, if set, is put before links
#   into this repository. RELEASE_SIGNER has the options of `cosign verify` for the signer, by default those for the key cosign.pub.
set -euo pipefail

[ $# = 2 ] && [[ $1 =~ ^.+/.+@sha256:[0-9a-f]{64}$ ]] || { echo "usage: release.sh REGISTRY/NAME@DIGEST FOLDER" >&2; exit 2; }
image=$1 folder=$(realpath "$2")
signer=${RELEASE_SIGNER:---key cosign.pub --insecure-ignore-tlog}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

overlay=$(mktemp -d)
trap 'rm -rf "$overlay"' EXIT
render() { # RESOURCE...
  {
    printf 'images: [{name: foo-controller, newName: "%s", digest: "%s"}]\nresources:\n' "${image%@*}" "${image#*@}"
    printf -- '- %s\n' "$@"
  } >"$overlay/kustomization.yaml"
  kubectl kustomize "$overlay"
}
deploy=$(realpath --relative-to "$overlay" deploy)
render "$deploy" >"$folder/install.yaml"
if grep -q '^ *strategy: Webhook$' deploy/crd.yaml; then
  render "$deploy/conversion" >"$folder/conversion.yaml"
  verify="
\$ cosign verify-blob $signer --bundle conversion.yaml.sigstore.json conversion.yaml"
  first='
$ kubectl create namespace foo-system     # on a new cluster
$ kubectl apply -f conversion.yaml
$ kubectl wait -n foo-system --for=condition=Available --timeout=5m deployment/foo-controller-conversion'
  last='
$ kubectl delete --ignore-not-found -f conversion.yaml'
  keep='To keep the Foos and their Deployments, stop the controller only. The conversion webhook must run as long as there are Foos:

```console
$ kubectl scale --namespace=foo-system deployment/foo-controller --replicas=0
```'
else
  keep='To keep the Foos and their Deployments, delete everything except the CRD instead:

```console
$ kubectl delete --ignore-not-found -f install.yaml -l app.kubernetes.io/name=foo-controller
```'
fi

name=$(sed -n 's/^name: //p' deploy/chart/Chart.yaml)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
notes=$(awk -v heading="## $version - " '/^## / { ours = index($0, heading) == 1; next } ours' CHANGELOG.md)
[ -n "$notes" ] || { echo "release.sh: no notes: CHANGELOG.md has no section \"## $version - DATE\"" >&2; exit 1; }
sed -E "s#\]\(([^):]+)\)#](${RELEASE_LINKS-}\1)#g" <<<"$notes" >"$folder/notes.md"
case $signer in
  *--key*) key=" and [.github/cosign.pub](${RELEASE_LINKS-}.github/cosign.pub) as \`cosign.pub\`" ;;
  *) key= ;;
esac
cat >>"$folder/notes.md" <<EOF

To install it, with cosign 3.0.5 or later$key:

\`\`\`console
$ cosign verify-blob $signer --bundle install.yaml.sigstore.json install.yaml${verify-}
$ cosign verify $signer -a version=$version \$(sed -n 's/^ *image: //p' install.yaml)${first-}
$ kubectl apply -f install.yaml
\`\`\`

Or by Helm, with the chart of this release:

\`\`\`console
$ cosign verify-blob $signer --bundle $name-$version.tgz.sigstore.json $name-$version.tgz
$ cosign verify $signer -a version=$version \$(helm template $name-$version.tgz | sed -n 's/^ *image: "\(.*\)"/\1/p')
$ helm install $name $name-$version.tgz --namespace foo-system --create-namespace --wait
\`\`\`

To uninstall it, delete the Foos first, and with each Foo its Deployment and pods. The first command waits for them. Without it,
Deployments may stay and run on.

\`\`\`console
$ kubectl delete foos --all --all-namespaces --cascade=foreground
$ kubectl delete --ignore-not-found -f install.yaml${last-}
\`\`\`

$keep
EOF
