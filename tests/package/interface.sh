#!/usr/bin/env bash
# interface.sh [OPTION OF cargo doc...]: writes the public interface of operator-runtime, in the workspace of the current folder, as
# JSON of rustdoc: doc/operator_runtime.json in the build folder.
set -euo pipefail
rustdoc=$(mktemp)
trap 'rm -f "$rustdoc"' EXIT
printf '#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc "$@"\n' >"$rustdoc" && chmod +x "$rustdoc"
RUSTDOC=$rustdoc RUSTDOCFLAGS='-Z unstable-options --output-format json' \
  cargo doc --quiet --no-deps --lib --package operator-runtime --features testing,k8s-openapi/v1_36 "$@"
