#!/usr/bin/env bash
# push.sh REGISTRY/NAME:TAG ARCHIVE... [-- OPTION OF skopeo copy...]: pushes the images, one for each architecture, and an index
# of them, so that every node pulls its own image. Prints the immutable name REGISTRY/NAME@DIGEST. Needs skopeo and jq.
set -euo pipefail

fail() { echo "$*; usage: push.sh REGISTRY/NAME:TAG ARCHIVE... [-- OPTION OF skopeo copy...]" >&2; exit 2; }
[ $# -ge 2 ] && [ "$2" != -- ] || fail 'push.sh: no archive'
to=$1
shift
# The colon before a port is not that of a tag.
[[ ${to##*/} = ?*:?* && $to != *@* ]] || fail "push.sh: $to has no tag"
layout=$(mktemp -d)
trap 'rm -rf "$layout"' EXIT
# Images built here have no signature to check.
copy() { skopeo --insecure-policy copy "$@" >&2; }

# skopeo cannot make an index. So all images are copied into one OCI layout, and their index is added to it as a blob.
index='{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}'
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  architecture=$(skopeo --insecure-policy inspect --config "docker-archive:$1" | jq --raw-output .architecture)
  [[ $index != *"\"$architecture\""* ]] || fail "push.sh: $1 is a second image for $architecture"
  copy "docker-archive:$1" "oci:$layout:$architecture"
  index=$(jq --argjson index "$index" --arg architecture "$architecture" '
    (.manifests[] | select(.annotations["org.opencontainers.image.ref.name"] == $architecture)) as $image
    | $index | .manifests += [$image | {mediaType, digest, size, platform: {os: "linux", architecture: $architecture}}]
  ' "$layout/index.json")
  shift
done
digest=$(printf %s "$index" | sha256sum | cut -d ' ' -f 1)
printf %s "$index" >"$layout/blobs/sha256/$digest"
jq --arg digest "sha256:$digest" --argjson size "${#index}" '.manifests += [{
  mediaType: "application/vnd.oci.image.index.v1+json", digest: $digest, size: $size,
  annotations: {"org.opencontainers.image.ref.name": "all"},
}]' "$layout/index.json" >"$layout/index.new"
mv "$layout/index.new" "$layout/index.json"
copy --all --digestfile "$layout/digest" "${@:2}" "oci:$layout:all" "docker://$to"
echo "${to%:*}@$(cat "$layout/digest")"
