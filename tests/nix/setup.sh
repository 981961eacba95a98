# shellcheck shell=bash
# Source this file: it defines `nix`, and `flake_options` for commands that build or evaluate the flake. A nix that reaches the
# real nixpkgs is used as it is. Otherwise nix is unpacked from Debian's packages into the cache folder, which also contains its
# store, and stand-in/ replaces nixpkgs. The host is not changed.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/foo-controller
state=$cache/nix
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "nix: $*" >&2; }

# Unpacks Debian's nix with all dependencies, including libc. No package is configured, and only nix is run.
unpack() {
  say "unpacking Debian's nix into $state"
  local apt=$work/apt unpacked=$state/unpacking
  rm -rf "$unpacked"
  mkdir -p "$apt"/{etc/apt/{sources.list.d,preferences.d,apt.conf.d},lists/partial,cache/archives/partial,debs}
  mkdir -p "$unpacked"/usr/{bin,lib,lib64,sbin}
  local folder
  for folder in bin lib lib64 sbin; do ln -s "usr/$folder" "$unpacked/$folder"; done
  : > "$apt/status"
  # The host's mirror, with the suite that has a current nix.
  sed -n '0,/^$/p' /etc/apt/sources.list.d/debian.sources | sed 's/^Suites:.*/Suites: sid/' > "$apt/etc/apt/sources.list.d/sid.sources"
  local options=(-o "Dir::Etc=$apt/etc/apt" -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status"
    -o "Dir::Cache=$apt/cache" -o APT::Install-Recommends=0 -o APT::Sandbox::User=root)
  apt-get -qq "${options[@]}" update
  local packages
  mapfile -t packages < <(apt-get "${options[@]}" --simulate install nix-bin | awk '/^Inst/ { print $2 }')
  (cd "$apt/debs" && apt-get -qq "${options[@]}" download "${packages[@]}")
  local package
  for package in "$apt"/debs/*.deb; do dpkg-deb --extract "$package" "$unpacked"; done
  mv "$unpacked" "$state/root"
}

# Adds the other files that stand-in/ needs.
furnish() {
  "$root/tests/tools/install.sh" cargo-deny 0.20.2
  "$root/tests/tools/install.sh" cargo-auditable 0.7.7
  "$root/tests/tools/install.sh" rust-audit-info 0.5.4
  "$root/tests/tools/install.sh" cargo-about 0.9.3 --features cli
  (cd "$root" && cargo fetch --quiet --locked)
  cp -r "$here/stand-in" "$work"
  cp "$cache"/{cargo-deny-0.20.2,cargo-auditable-0.7.7,rust-audit-info-0.5.4,cargo-about-0.9.3}/bin/* "$work/stand-in"
  cat /usr/share/ca-certificates/mozilla/*.crt > "$work/stand-in/ca-bundle.crt"
  (cd "$root" && rustc -vV && cc --version) > "$work/stand-in/compilers"
  mkdir "$work/stand-in/crates"
  local crate found
  while read -r crate; do
    found=("${CARGO_HOME:-$HOME/.cargo}"/registry/cache/*/"$crate")
    cp "${found[0]}" "$work/stand-in/crates"
  done < <(awk -F'"' '/^name/ { name = $2 } /^version/ { version = $2 } /^source/ { print name "-" version ".crate" }' "$root/Cargo.lock")
}

export NIX_CONFIG='experimental-features = nix-command flakes'
if nix eval --raw "$root#default.drvPath" >/dev/null 2>&1; then
  say "$(nix --version), with the real nixpkgs"
  export real_nixpkgs=yes
  flake_options=()
else
  export real_nixpkgs=no
  if [ "$(id -u)" != 0 ] || [ "$(uname -m)" != x86_64 ] || [ ! -e /etc/apt/sources.list.d/debian.sources ]; then
    say "there is no nix that reaches nixpkgs; without it this takes root on a Debian on x86_64"
    exit 1
  fi
  mkdir -p "$state"
  (
    flock 9
    [ -e "$state/root" ] || unpack
  ) 9> "$state/lock"
  furnish
  export NIX_CONF_DIR=$state NIX_STATE_DIR=$state/var NIX_REMOTE="local?root=$state/store" NIX_USER_CONF_FILES=
  NIX_CONFIG="experimental-features = nix-command flakes auto-allocate-uids
auto-allocate-uids = true
build-users-group =
build-hook =
substituters =
flake-registry =
warn-dirty = false
sandbox = true
sandbox-fallback = false
sandbox-paths = /usr /bin /lib /lib64 /etc/alternatives /rust=$(cd "$root" && rustc --print sysroot)"
  nix() {
    local libraries=$state/root/usr/lib/x86_64-linux-gnu
    XDG_CACHE_HOME=$state/cache XDG_STATE_HOME=$state/cache \
      "$libraries/ld-linux-x86-64.so.2" --argv0 nix --library-path "$libraries" "$state/root/usr/bin/nix" "$@"
  }
  nix flake lock --override-input nixpkgs "path:$work/stand-in" --output-lock-file "$work/flake.lock" "$root"
  # shellcheck disable=SC2034 # Used where this is sourced.
  flake_options=(--reference-lock-file "$work/flake.lock")
  say "$(nix --version), with a stand-in for nixpkgs"
fi
