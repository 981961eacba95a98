#!/usr/bin/env bash
# e2e.sh [IMAGE]: runs tests/delivery/node.rs on a real node (node.sh). IMAGE is the image under test, a docker or OCI archive.
# Without it, Nix builds the image. Needs root and the packages of .ci/run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

control_plane=$(crates/testkit/src/cluster/build.sh)
programs=$(tests/tools/build.sh node):$(tests/tools/build.sh helm)
NODE=$(mktemp -d "${TMPDIR:-/tmp}/foo-controller-node-XXXXXX")
trap 'rm -rf --one-file-system "$NODE"' EXIT
trap 'exit 143' TERM HUP # after the running command has ended
export NODE PATH=$programs:$control_plane:/usr/sbin:/sbin:$PATH AUDIT_POLICY=$PWD/crates/testkit/src/cluster/audit-policy.yaml
mkdir "$NODE/images"

# Prints a docker archive with one file, which is its entrypoint.
pack() { # program, image, user
  local work name
  work=$(mktemp -d "$NODE/pack-XXXXXX") name=$(basename "$1")
  tar --create --file "$work/layer.tar" --directory "$(dirname "$1")" --owner 0 --group 0 --mtime @0 "$name"
  printf '{"architecture": "amd64", "os": "linux", "config": {"Entrypoint": ["/%s"], "User": "%s"}, "rootfs": {"type": "layers", "diff_ids": ["sha256:%s"]}}' \
    "$name" "$3" "$(sha256sum "$work/layer.tar" | cut -d' ' -f1)" >"$work/config.json"
  printf '[{"Config": "config.json", "RepoTags": ["%s"], "Layers": ["layer.tar"]}]' "$2" >"$work/manifest.json"
  tar --create --directory "$work" manifest.json config.json layer.tar
}

image=${1:-}
if [ -z "$image" ]; then
  tests/nix/image.sh
  image=${XDG_CACHE_HOME:-$HOME/.cache}/foo-controller/image.tar
fi
gzip --decompress --force --stdout "$image" >"$NODE/images/under-test.tar" # copies an uncompressed archive
gcc -O2 -static -s -o "$NODE/stand-in" tests/node/stand-in.c
pack "$NODE/stand-in" stand-in:e2e 65532:65532 >"$NODE/images/stand-in.tar"

cargo test --locked --test integration --no-run
# Not at the same time as the tests of `make test`, which have deadlines, too.
exec 9>"${XDG_CACHE_HOME:-$HOME/.cache}/foo-controller/deadlines.lock"
flock 9
status=0
on_node() { tests/node/node.sh cargo test --locked --offline --test integration -- --nocapture --test-threads 1 "$@"; }
on_node --ignored node:: || status=$?
# Another cluster, with IPv6 alone.
images=$NODE/images results=$NODE/results
export NODE=$NODE/6
mkdir "$NODE"
ln -s "$images" "$NODE/images"
touch "$results"
ln -s "$results" "$NODE/results"
FAMILY=6 on_node --ignored node::families:: || status=$?
NODE=${NODE%/6}
config=$(tar xOf "$NODE/images/under-test.tar" manifest.json | jq -r '.[0].Config')
echo "image: $image, id sha256:${config%.json}"
echo "on: $(kube-apiserver --version), $(containerd --version | cut -d' ' -f1,3), $(runc --version | head -n 1), cgroup v$([ -f /sys/fs/cgroup/cgroup.controllers ] && echo 2 || echo 1), Linux $(uname -r), $(nproc) CPUs"
sort "$NODE/results" 2>/dev/null || true
exit $status
