#!/usr/bin/env bash
# Everything about flake.nix: formatted, nothing unused, every output evaluates, the checks pass, no edit rebuilds more than it
# must, and whatever is built twice is the same bit by bit.
# shellcheck disable=SC2154 # Set by setup.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=/dev/null
. tests/nix/setup.sh

tool nixpkgs-fmt 1.3.0
tool deadnix 1.3.1
git ls-files -z '*.nix' | xargs -0 "$cache/nixpkgs-fmt-1.3.0/bin/nixpkgs-fmt" --check
git ls-files -z '*.nix' | xargs -0 "$cache/deadnix-1.3.1/bin/deadnix" --fail

nix flake check --all-systems --no-build "${flake_options[@]}"

# Edits are tried on a copy, which has no commit.
copy=$work/copy
mkdir "$copy"
git ls-files -z | xargs -0 cp --parents --target-directory "$copy"
derivations() {
  nix eval --json "${flake_options[@]}" "path:$copy#checks" --apply 'builtins.mapAttrs (_: builtins.mapAttrs (_: check: check.drvPath))'
}
unstamped() { nix eval --raw "${flake_options[@]}" "$1#default.unstamped.drvPath"; }
[ "$(unstamped .)" = "$(unstamped "path:$copy")" ] || { say "a commit rebuilds the program"; exit 1; }
before=$(derivations)
echo >> "$copy/README.md"
[ "$(derivations)" = "$before" ] || { say "an edit of README.md rebuilds something"; exit 1; }
echo >> "$copy/src/main.rs"
[ "$(derivations)" != "$before" ] || { say "an edit of src/main.rs rebuilds nothing"; exit 1; }

nix flake check --print-build-logs "${flake_options[@]}"
tests/nix/image.sh

# `default` is the program of `default.unstamped` with the commit written into it. What has been seen once is not built again.
mkdir -p "$state/identical"
for output in default.unstamped default image; do
  derivation=$(nix eval --raw "${flake_options[@]}" ".#$output.drvPath")
  seen=$state/identical/$(basename "$derivation")
  [ -e "$seen" ] || nix build --no-link --rebuild "${flake_options[@]}" ".#$output"
  touch "$seen"
  echo "built twice, the same bit by bit: $output"
done

if [ "$real_nixpkgs" = no ]; then
  echo "Not proven here, without nixpkgs: that its packages evaluate and build, musl (this program is linked with the" \
    "host's glibc, statically), image-arm64, skopeo and the dev shell."
fi
