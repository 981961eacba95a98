#!/usr/bin/env bash
# Puts the programs of a Kubernetes control plane into one folder of the user's cache and prints the folder's path.
# Each is linked from $KUBEBUILDER_ASSETS where it is there, or from PATH where PATH has them all, and else built with Go
# from the versions pinned beside this: minutes the first time, nothing afterwards. Callers at the same time wait for one another.
#   build.sh kubectl  puts only this program there
#   build.sh --built  builds nothing, and fails if a program is missing
#   KUBERNETES=1.33  all of them are built, Kubernetes' own of that version; kubernetes/ has those that are supported
#   PIN=v1.33.14     pins that version in kubernetes/ instead of the one before, by Go's database of checksums
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

default=1.36 # which the API server in memory imitates by default
kubernetes=(kube-apiserver kube-controller-manager kube-scheduler kubectl) # most packages are in all of them
programs=(etcd kwok "${kubernetes[@]}")

say() { echo "control plane: $*" >&2; }

on_path=yes # are all of them?
for program in "${programs[@]}"; do
  command -v "$program" >/dev/null || on_path=no
done

# Where the given program is already, or nothing.
found() {
  if [ -n "${KUBERNETES:-}" ]; then
    return
  elif [ -x "${KUBEBUILDER_ASSETS:-}/$1" ]; then
    echo "$KUBEBUILDER_ASSETS/$1"
  elif [ "$on_path" = yes ]; then
    command -v "$1"
  fi
}

# Kubernetes, to be built as its releases are, by its own go.mod and go.sum. Its parts (k8s.io/api …), which are folders of its
# repository, are the modules that they are published as. Prints where its source is.
modules() { # version, checksums, folder to write go.mod and go.sum into
  local source
  printf 'module pins\n\ngo 1.26\n\nrequire k8s.io/kubernetes %s\n' "$1" >"$3/go.mod"
  cat "$2" >"$3/go.sum"
  source=$(cd "$3" && GOWORK=off go mod download k8s.io/kubernetes && GOWORK=off go list -m -f '{{.Dir}}' k8s.io/kubernetes) || return
  sed -E "s|=> \./staging/src/(.*)|=> \1 v0${1#v1}|; s|(k8s.io/.*) v0\.0\.0$|\1 v0${1#v1}|" "$source/go.mod" >"$3/go.mod"
  cat "$source/go.sum" >>"$3/go.sum"
  echo "$source"
}

if [ -n "${PIN:-}" ]; then
  work=$(mktemp -d)
  trap 'rm -r "$work"' EXIT
  source=$(modules "$PIN" /dev/null "$work")
  (cd "$source" && GOWORK=off go list -mod=mod -modfile="$work/go.mod" -deps "${kubernetes[@]/#/./cmd/}" >/dev/null)
  minor=${PIN#v} minor=${minor%.*}
  grep -vxFf "$source/go.sum" "$work/go.sum" >"kubernetes/$minor.sum"
  exit
fi

checksums=kubernetes/${KUBERNETES:-$default}.sum
[ -e "$checksums" ] || { say "KUBERNETES=$KUBERNETES is not supported; these are: $(cd kubernetes && echo *.sum | sed 's/\.sum//g')"; exit 1; }
version=$(sed -nE 's|^k8s.io/kubernetes ([^ /]+) .*|\1|p' "$checksums") # which they say of themselves

build() { # folder to write into, programs
  local folder=$1 flags=(-trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$1/") source
  export GOWORK=off GOFLAGS=-buildvcs=false
  case $2 in
    etcd) go build "${flags[@]}" go.etcd.io/etcd/server/v3 && mv "$folder/server" "$folder/etcd" ;;
    kwok) (cd kwok && go build "${flags[@]}" sigs.k8s.io/kwok/cmd/kwok) ;;
    *)
      shift
      source=$(modules "$version" "$checksums" "$folder") || return
      (cd "$source" && go build -mod=readonly -modfile="$folder/go.mod" "${flags[@]}" "${@/#/./cmd/}")
      ;;
  esac
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
key=$({ grep -hv foo-controller go.mod go.sum kwok/go.mod kwok/go.sum "$checksums" build.sh; for program in "${programs[@]}"; do found "$program"; done; } | sha256sum | cut -c1-16)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/foo-controller/cluster/$key
if [ "${1:-}" = --built ]; then
  for program in "${programs[@]}"; do
    [ -x "$folder/$program" ] || [ -n "$(found "$program")" ] || exit 1
  done
  exit
fi
mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9

# What is not there yet and not found elsewhere, of the given ones: built in one go.
provide() {
  local program from missing=() started=$SECONDS
  for program in "$@"; do
    [ -x "$folder/$program" ] && continue
    from=$(found "$program")
    if [ -n "$from" ]; then
      say "$program: $from"
      ln -sf "$from" "$folder/$program"
    else
      missing+=("$program")
    fi
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v go >/dev/null || { say "${missing[*]} to be built, but Go is not on PATH"; exit 1; }
  say "building ${missing[*]} (the first time on a machine takes minutes) ..."
  rm -rf "$folder/new" && mkdir "$folder/new"
  build "$folder/new" "${missing[@]}" 2>"$folder/log" || { cat "$folder/log" >&2; exit 1; }
  for program in "${missing[@]}"; do
    mv "$folder/new/$program" "$folder/$program"
  done
  say "built in $((SECONDS - started)) s: ${missing[*]}"
}
if [ $# -gt 0 ]; then
  provide "$@"
  echo "$folder"
  exit
fi
provide etcd
provide kwok
provide "${kubernetes[@]}"
if [ ! -e "$folder/kwok-stages.yaml" ]; then
  stages >"$folder/kwok-stages.yaml.new"
  mv "$folder/kwok-stages.yaml.new" "$folder/kwok-stages.yaml"
fi
echo "$folder"
