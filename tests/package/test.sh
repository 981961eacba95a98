#!/usr/bin/env bash
# Packages crates/runtime as for crates.io, and builds two dependants from the package. They are the first operator of its README,
# and its example for kube's own `Controller` without the default features, which takeover.sh runs. Checks the supported version
# of Rust, and compares the public interface with public_api.txt (WRITE=1 updates it). Needs jq; no network if the dependencies
# are fetched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target} CARGO_INCREMENTAL=0
fail() { echo "package: $*" >&2; exit 1; }

# The pinned compiler is the oldest supported one, so every other test covers it. No dependency may need a newer one.
claimed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
[ "$(sed -n 's/^channel = "\(.*\)\.0"/\1/p' rust-toolchain.toml)" = "$claimed" ] ||
  fail "rust-version $claimed of Cargo.toml is not the channel of rust-toolchain.toml"
newer=$(cargo metadata --locked --offline --format-version 1 --filter-platform "$(rustc -vV | sed -n 's/^host: //p')" |
  jq -r --arg claimed "$claimed" 'def number: split(".") | map(tonumber);
    .packages[] | select(.rust_version and (.rust_version | number[:2]) > ($claimed | number)) | "\(.name) \(.rust_version)"')
[ -z "$newer" ] || fail "these dependencies need a newer Rust than $claimed: $newer"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo package --quiet --locked --offline --no-verify --allow-dirty --package operator-runtime
# The paths of the dependants do not change, so that cargo keeps their builds.
dependants=$CARGO_TARGET_DIR/dependants
rm -rf "$dependants" && mkdir -p "$dependants"/{first,elected}/src
# With the current time: cargo compares timestamps, and those in a package never change.
packaged=operator-runtime-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
tar xzmf "$CARGO_TARGET_DIR/package/$packaged.crate" -C "$dependants"
for file in LICENSE README.md; do [ -s "$dependants/$packaged/$file" ] || fail "the package contains no $file"; done

cd "$dependants"
cp "$root/Cargo.lock" "$root/rust-toolchain.toml" .
echo '[workspace]
members = ["first", "elected"]
resolver = "3"
[profile.dev]
debug = false' >Cargo.toml
readme() { sed -n '/^```'"$1"'/,/^```$/{//!p}' "$packaged/README.md"; } # the blocks of a language
manifest() { printf '[package]\nname = "%s"\nversion = "0.1.0"\nedition = "2024"\n' "$1"; }
runtime() { sed "s|path = \"…/crates/runtime\"|path = \"../$packaged\"${1-}|"; }
{ manifest first; readme toml | sed '/^operator-runtime .*default-features/d' | runtime ', features = ["testing"]'; } >first/Cargo.toml
readme rust >first/src/main.rs
{
  manifest elected
  echo '[dependencies]'
  readme toml | grep '^operator-runtime .*default-features' | runtime
  # Another version of the API than that of our programs.
  cat <<'MANIFEST'
k8s-openapi = { version = "0.28", features = ["v1_33", "schemars"] }
kube = { version = "4.2", default-features = false, features = ["client", "runtime", "rustls-tls", "ring"] }
futures = { version = "0.3", default-features = false }
tokio = { version = "1", features = ["rt", "macros", "signal", "sync"] }
tracing = "0.1"
tracing-subscriber = { version = "0.3", default-features = false, features = ["fmt"] }
MANIFEST
} >elected/Cargo.toml
cp "$packaged/examples/kube_controller.rs" elected/src/main.rs
target=$CARGO_TARGET_DIR
export CARGO_TARGET_DIR=$target/of-dependants
cargo check --quiet --offline --package first
cargo build --quiet --offline --package elected

graph=$(cargo tree --offline --package operator-runtime --no-default-features --edges normal --prefix none |
  sed 's/ (\*)//' | sort -u)
for excluded in clap figment kube-runtime kube-derive opentelemetry-otlp tonic toml tracing-subscriber; do
  ! grep -q "^$excluded v" <<<"$graph" || fail "without the feature operator, the runtime depends on $excluded"
done
echo "crates in the graph without the feature operator: $(wc -l <<<"$graph")"

# The JSON format of rustdoc is unstable: public_api.jq matches the pinned compiler.
"$root/tests/package/interface.sh" --offline
listed=$root/tests/package/public_api.txt
jq -r -f "$root/tests/package/public_api.jq" "$CARGO_TARGET_DIR/doc/operator_runtime.json" |
  LC_ALL=C sort -u >"$work/public_api.txt"
[ "${WRITE-}" != 1 ] || cp "$work/public_api.txt" "$listed"
diff -u "$listed" "$work/public_api.txt" || fail 'the public interface has changed; if this is intended, run make package-test WRITE=1'
