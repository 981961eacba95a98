#!/usr/bin/env bash
# push.sh REGISTRY/NAME:TAG ARCHIVE... [-- OPTION OF skopeo copy...]: pushes the images, one for each architecture, as an index
# of them, of which every node pulls its own. Prints what it is for good: REGISTRY/NAME@DIGEST. Takes skopeo and jq.
set -euo pipefail

fail() { echo "$*; usage: push.sh REGISTRY/NAME:TAG ARCHIVE... [-- OPTION OF skopeo copy...]" >&2; exit 2; }
[ $# -ge 2 ] && [ "$2" != -- ] || fail 'push.sh: no archive'
to=$1
shift
# The colon of a port is no tag's.
[[ ${to##*/} = ?*:?* && $to != *@* ]] || fail "push.sh: $to has no tag"
layout=$(mktemp -d)
trap 'rm -rf "$layout"' EXIT
# There is no signature to check on what was built here.
copy() { skopeo --insecure-policy copy "$@" >&2; }

# skopeo makes no index: the images become one OCI layout, and the index of them a blob of that.
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
