#!/usr/bin/env bash
# Builds the image, and writes its archive to the path that the end-to-end test reads.
# shellcheck disable=SC2154 # Set by setup.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=/dev/null
. tests/nix/setup.sh

archive=$cache/image.tar
built=$(nix build --no-link --print-out-paths "${flake_options[@]}" ".#image")
nix store cat "$built" > "$archive.$$"
mv "$archive.$$" "$archive"

config=$(tar xOf "$archive" manifest.json | jq -r '.[0].Config')
echo "$archive: $(gzip < "$archive" | wc -c) bytes compressed"
echo "image id  sha256:${config%.json}"
tar xOf "$archive" "$config" | jq -r '.rootfs.diff_ids[] | "layer     " + .'
