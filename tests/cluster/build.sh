#!/usr/bin/env bash
# Puts the programs of a Kubernetes control plane into one folder of the user's cache and prints the folder's path.
# Each is linked from $KUBEBUILDER_ASSETS where it is there, or from PATH where PATH has them all, and else built with Go
# from the versions pinned in go.mod: minutes the first time, nothing afterwards. Callers at the same time wait for one another.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

version=v1.36.3 # what kube-apiserver says of itself: as in go.mod
programs=(etcd kube-apiserver kubectl kube-controller-manager kube-scheduler kwok)

say() { echo "control plane: $*" >&2; }

on_path=yes # are all of them?
for program in "${programs[@]}"; do
  command -v "$program" >/dev/null || on_path=no
done

# Where the given program is already, or nothing.
found() {
  if [ -x "${KUBEBUILDER_ASSETS:-}/$1" ]; then
    echo "$KUBEBUILDER_ASSETS/$1"
  elif [ "$on_path" = yes ]; then
    command -v "$1"
  fi
}

build() { # program, file to write
  case $1 in
    etcd) set -- go.etcd.io/etcd/server/v3 "$2" . ;;
    kwok) set -- sigs.k8s.io/kwok/cmd/kwok "$2" kwok ;;
    *) set -- "k8s.io/kubernetes/cmd/$1" "$2" . ;;
  esac
  (cd "$3" && GOWORK=off GOFLAGS=-buildvcs=false go build -trimpath \
    -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$2" "$1")
}

# kwok has no behaviour without stages: nodes that stay alive, pods that get Ready as soon as they are scheduled.
stages() {
  local module
  module=$(cd kwok && GOWORK=off go mod download sigs.k8s.io/kwok && GOWORK=off go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)
  for stage in "$module"/kustomize/stage/{node/fast/node,node/heartbeat-with-lease/node,pod/fast/pod}-*.yaml; do
    echo "---"
    cat "$stage"
  done
}

# The project's name is not in it: a fork has the same programs.
key=$({ grep -hv foo-controller go.mod go.sum kwok/go.mod kwok/go.sum build.sh; for program in "${programs[@]}"; do found "$program"; done; } | sha256sum | cut -c1-16)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/foo-controller/cluster/$key
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9

number=0
for program in "${programs[@]}"; do
  number=$((number + 1))
  [ -x "$folder/$program" ] && continue
  from=$(found "$program")
  if [ -n "$from" ]; then
    say "[$number/${#programs[@]}] $program: $from"
    ln -sf "$from" "$folder/$program"
    continue
  fi
  command -v go >/dev/null || { say "$program is to be built, but Go is not on PATH"; exit 1; }
  say "[$number/${#programs[@]}] building $program (the first time on a machine takes minutes) ..."
  started=$SECONDS
  build "$program" "$folder/$program.new" 2>"$folder/$program.log" || { cat "$folder/$program.log" >&2; exit 1; }
  mv "$folder/$program.new" "$folder/$program"
  say "[$number/${#programs[@]}] $program built in $((SECONDS - started)) s"
done
if [ ! -e "$folder/kwok-stages.yaml" ]; then
  stages >"$folder/kwok-stages.yaml.new"
  mv "$folder/kwok-stages.yaml.new" "$folder/kwok-stages.yaml"
fi
echo "$folder"
