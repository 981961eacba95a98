#!/usr/bin/env bash
# build.sh MODULE: builds the programs that MODULE/go.mod names as its tools into a folder of the user's cache, and prints the
# folder's path. Minutes the first time, nothing afterwards. Callers at the same time wait for one another.
#   manifests  kubeconform, kube-score and actionlint
#   node       kubelet and kube-proxy
#   cosign     cosign 3
#   cosign2    cosign 2
#   kstatus    prints the status that kstatus computes for an object
#   argocd     prints Argo CD's health of an object
#   go-clients  kubernetes/sample-controller, and clients of client-go and controller-runtime
#   kube-state-metrics
#   helm       Helm 4
#   helm3      Helm 3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/${1:?which module?}"

kubernetes=$(sed -nE 's|^require k8s.io/kubernetes (\S+).*|\1|p' go.mod) # what its programs say of themselves
build=(go build -trimpath -ldflags "-s -w ${kubernetes:+-X k8s.io/component-base/version.gitVersion=$kubernetes}")
# Only the module and the command: a change of another module, or of this script, does not build this one again. Nor does the
# project's name, so that a fork has the same programs.
shopt -s nullglob
key=$({ grep -hv foo-controller go.mod go.sum *.go && echo "${build[@]}"; } | sha256sum | cut -c1-16)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/foo-controller/tools/$key
mkdir -p "${folder%/*}"
exec 9>"$folder.lock"
flock 9
if [ ! -d "$folder" ]; then
  command -v go >/dev/null || { echo "$1 is to be built, but Go is not on PATH" >&2; exit 1; }
  echo "building $1 (the first time on a machine takes minutes) ..." >&2
  rm -rf "$folder.new" && mkdir "$folder.new"
  GOWORK=off GOFLAGS=-buildvcs=false "${build[@]}" -o "$folder.new/" tool
  mv "$folder.new" "$folder"
fi
echo "$folder"
