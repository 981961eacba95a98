#!/usr/bin/env bash
# Everything about flake.nix: formatted, nothing unused, every output evaluates, the checks pass, no edit rebuilds more than it
# must, and whatever is built twice is the same bit by bit.
# shellcheck disable=SC2154 # Set by setup.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=/dev/null
. tests/nix/setup.sh

# nixfmt in Rust, which formats as nixfmt does, to the letter.
tests/tools/install.sh nixfmt_rs 0.5.3
tests/tools/install.sh deadnix 1.3.1
git ls-files -z '*.nix' | xargs -0 "$cache/nixfmt_rs-0.5.3/bin/nixfmt" --check
git ls-files -z '*.nix' | xargs -0 "$cache/deadnix-1.3.1/bin/deadnix" --fail

nix flake check --all-systems --no-build "${flake_options[@]}"

# Edits are tried on a copy, which has no commit.
system=$(nix eval --raw --impure --expr builtins.currentSystem)
copy=$work/copy
mkdir "$copy"
git ls-files -z | xargs -0 cp --parents --target-directory "$copy"
derivations() {
  nix eval --json "${flake_options[@]}" "path:$copy#checks" --apply 'builtins.mapAttrs (_: builtins.mapAttrs (_: check: check.drvPath))'
}
derivation() { nix eval --raw "${flake_options[@]}" "$1#$2.drvPath"; }
unstamped=$(derivation . default.unstamped)
[ "$unstamped" = "$(derivation "path:$copy" default.unstamped)" ] || { say "a commit rebuilds the program"; exit 1; }
before=$(derivations)
for file in README.md docs/*.md; do echo >> "$copy/$file"; done
[ "$(derivations)" = "$before" ] || { say "an edit of README.md or docs/ rebuilds something"; exit 1; }
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

# Of this build, and so of any after an edit of src: these crates are compiled, and no other.
ours=$(cargo metadata --format-version 1 --no-deps --locked --offline | jq -r '.packages[].name' | sort)
crates=$(nix log "$unstamped" | sed -nE 's/\x1b\[[0-9;]*m//g; s/^ *Compiling (\S+) v.*/\1/p' | sort)
[ "$crates" = "$ours" ] || { say "$unstamped compiled $crates, not only $ours"; exit 1; }
echo "compiled with the dependencies at hand: $crates"

# The bill of materials has nothing that was not compiled: no crate of the tests, nor of a feature of theirs.
compiled=$(nix log "$(derivation . default.dependencies)" | sed -nE 's/\x1b\[[0-9;]*m//g; s/^ *Compiling (\S+) v(\S+).*/\1 \2/p' | sort)
shipped=$(nix store cat "$(nix build --no-link --print-out-paths "${flake_options[@]}" .#sbom)" |
  jq -r '.metadata.component, .components[] | .name + " " + .version' | sort)
[ -z "$(comm -13 <(echo "$compiled") <(echo "$shipped"))" ] || { say "the bill of materials has more than was compiled"; exit 1; }

# `default` is the program of `default.unstamped` with the commit written into it. How things are built is what makes them the
# same or not: until that changes, nothing is built twice again here. (On GitHub, where there is no cache, it always is.)
how=$(git ls-files -z flake.nix flake.lock nix tests/nix Cargo.lock '*Cargo.toml' '*build.rs' | xargs -0 sha256sum | sha256sum)
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
