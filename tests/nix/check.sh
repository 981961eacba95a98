#!/usr/bin/env bash
# All checks of flake.nix: formatting, unused code, evaluation of every output, the flake's checks, minimal rebuilds after an
# edit, and reproducible builds.
# shellcheck disable=SC2154 # Set by setup.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=/dev/null
. tests/nix/setup.sh

# nixfmt in Rust, with exactly the format of nixfmt.
tests/tools/install.sh nixfmt_rs 0.5.3
tests/tools/install.sh deadnix 1.3.1
git ls-files -z '*.nix' | xargs -0 "$cache/nixfmt_rs-0.5.3/bin/nixfmt" --check
git ls-files -z '*.nix' | xargs -0 "$cache/deadnix-1.3.1/bin/deadnix" --fail

nix flake check --all-systems --no-build "${flake_options[@]}"

# Edits are made in a copy, which has no commit.
system=$(nix eval --raw --impure --expr builtins.currentSystem)
copy=$work/copy
mkdir "$copy"
git ls-files -z | xargs -0 cp --parents --no-dereference --target-directory "$copy"
derivations() {
  nix eval --json "${flake_options[@]}" "path:$copy#checks" --apply 'builtins.mapAttrs (_: builtins.mapAttrs (_: check: check.drvPath))'
}
derivation() { nix eval --raw "${flake_options[@]}" "$1#$2.drvPath"; }
unstamped=$(derivation . default.unstamped)
[ "$unstamped" = "$(derivation "path:$copy" default.unstamped)" ] || { say "a commit rebuilds the program"; exit 1; }
before=$(derivations)
for file in README.md docs/*.md tests/main.rs {crates/simulation,crates/testkit,tests/simulation}/src/lib.rs xtask/src/main.rs; do echo >> "$copy/$file"; done
[ "$(derivations)" = "$before" ] || { say "an edit of the documentation or the tests rebuilds something"; exit 1; }
dependencies() { derivation "path:$copy" default.dependencies; }
compiled=$(dependencies)
echo >> "$copy/src/main.rs"
[ "$(derivations)" != "$before" ] || { say "an edit of src/main.rs rebuilds nothing"; exit 1; }
[ "$(dependencies)" = "$compiled" ] || { say "an edit of src/main.rs compiles the dependencies again"; exit 1; }
echo >> "$copy/Cargo.lock"
[ "$(dependencies)" != "$compiled" ] || { say "an edit of Cargo.lock compiles no dependency again"; exit 1; }

nix flake check --print-build-logs "${flake_options[@]}"
tests/nix/image.sh
echo "the bounds of the histograms of the image's /metrics, which promtool finds no fault with:"
nix store cat "$(nix build --no-link --print-out-paths "${flake_options[@]}" ".#checks.$system.image")"

# The log of this build stands for any build after an edit of src: only these crates are compiled.
ours=$(cargo metadata --format-version 1 --no-deps --locked --offline |
  jq -r '.workspace_default_members as $ours | .packages[] | select(.id | IN($ours[])) | .name' | sort)
crates=$(nix log "$unstamped" | sed -nE 's/\x1b\[[0-9;]*m//g; s/^ *Compiling (\S+) v.*/\1/p' | sort)
[ "$crates" = "$ours" ] || { say "$unstamped compiled $crates, not only $ours"; exit 1; }
echo "compiled with the dependencies at hand: $crates"

# The bill of materials contains only compiled crates: none of the tests, and none of a feature that only tests enable.
compiled=$(nix log "$(derivation . default.dependencies)" | sed -nE 's/\x1b\[[0-9;]*m//g; s/^ *Compiling (\S+) v(\S+).*/\1 \2/p' | sort)
shipped=$(nix store cat "$(nix build --no-link --print-out-paths "${flake_options[@]}" .#sbom)" |
  jq -r '.metadata.component, .components[] | .name + " " + .version' | sort)
[ -z "$(comm -13 <(echo "$compiled") <(echo "$shipped"))" ] || { say "the bill of materials has more than was compiled"; exit 1; }

# `default` is the program of `default.unstamped` with the commit. Whether a build is reproducible depends on the build files:
# everything is built twice only after they have changed. (On GitHub, which has no cache, always.)
how=$(git ls-files -z flake.nix flake.lock nix tests/nix Cargo.lock '*Cargo.toml' '*build.rs' ':!benches' | xargs -0 sha256sum | sha256sum)
mkdir -p "$state/identical"
for output in default.unstamped default image sbom; do
  seen=$state/identical/$output-${how%% *}
  [ -e "$seen" ] || for again in '' --rebuild; do nix build --no-link $again "${flake_options[@]}" ".#$output"; done
  touch "$seen"
  echo "built twice, the same bit by bit, since what builds it is as it is: $output"
done

if [ "$real_nixpkgs" = no ]; then
  echo "Not proven here, without nixpkgs: that its packages evaluate and build, musl (this program is linked with the" \
    "host's glibc, statically), image-arm64, skopeo and the dev shell."
fi
