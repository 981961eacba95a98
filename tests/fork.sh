#!/usr/bin/env bash
# Makes a fork of the committed state in a copy, with names that share no letter with the original ones, and gives its kind a
# Service, and the program a second kind, as in docs/make-it-yours.md. No original name is left. The fork is built, checked, tested
# and installed, and its demo runs with the Service.
# Builds are kept in the cache beside the others; nothing else is left.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests/require.sh

cache=${XDG_CACHE_HOME:-$HOME/.cache}/foo-controller
mkdir -p "$cache/fork"
exec 9>"$cache/fork/lock"
flock 9
bin=$(crates/testkit/src/cluster/build.sh) && crates/testkit/src/collector/build.sh >/dev/null # shared builds, made once

# A fixed path: cargo identifies its builds by it.
copy=$cache/fork/copy caches=$(mktemp -d) plane='' controller=''
clean_up() {
  if [ -n "$controller" ]; then kill "$controller" 2>/dev/null || true; wait "$controller" || true; fi
  if [ -n "$plane" ]; then exec {to_plane}>&-; wait "$plane" || true; fi
  rm -rf "$copy" "$caches"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
rm -rf "$copy"
git clone --quiet --no-local . "$copy"
ln -s "$cache" "$caches/foo-controller"
cd "$copy"
export XDG_CACHE_HOME=$caches CARGO_TARGET_DIR=$cache/fork/target CARGO_INCREMENTAL=0
unset MAKEFLAGS MAKELEVEL

begun=$SECONDS
say() { printf '== %s (after %d s)\n' "$*" $((SECONDS - begun)); }
fail() { echo "fork: $*" >&2; exit 1; }

say 'what cannot be a fork is refused, and nothing is changed'
refused() { # expected message, arguments
  local said
  ! said=$(make --silent fork "${@:2}" 2>&1) || fail "taken: ${*:2}"
  [[ $said == *"$1"* ]] || fail "${*:2}: $said"
}
refused 'are needed' NAME=kudu-kiwi KIND=IbyxHub
refused 'small letters' NAME=Kudu KIND=IbyxHub GROUP=quux.biz
refused 'single hyphens' NAME=kudu--kiwi KIND=IbyxHub GROUP=quux.biz
refused 'a capital letter' NAME=kudu-kiwi KIND=ibyxHub GROUP=quux.biz
refused 'no domain' NAME=kudu-kiwi KIND=IbyxHub GROUP=quux
refused 'approval' NAME=kudu-kiwi KIND=IbyxHub GROUP=quux.k8s.io
refused 'Kubernetes has' NAME=kudu-kiwi KIND=IbyxHub GROUP=quux.biz SHORT=po
refused "Kubernetes' own" NAME=kudu-kiwi KIND=Job GROUP=quux.biz
refused "Kubernetes' own" NAME=kudu-kiwi KIND=StorageClass GROUP=quux.biz PLURAL=storageclasses
refused 'the short name of one' NAME=kudu-kiwi KIND=PDB GROUP=quux.biz
refused "Kubernetes' own" NAME=kudu-kiwi KIND=IbyxHub GROUP=quux.biz PLURAL=ingresses
refused 'a folder of cargo' NAME=examples KIND=IbyxHub GROUP=quux.biz
refused 'has a file here' NAME=kudu-kiwi KIND=Design GROUP=quux.biz
refused "word of Rust's" NAME=kudu-kiwi KIND=Virtual GROUP=quux.biz
refused "word of Go's" NAME=kudu-kiwi KIND=Interface GROUP=quux.biz
refused 'no text in YAML' NAME=null KIND=IbyxHub GROUP=quux.biz
refused 'ends with a number' NAME=kudu-kiwi KIND=IbyxHub GROUP=quux.5
refused 'a capital letter' NAME=kudu-kiwi 'KIND=Ib"`touch new`' GROUP=quux.biz
NAME=kudu-kiwi refused 'are needed' KIND=IbyxHub GROUP=quux.biz
refused 'something else' NAME=fencing KIND=IbyxHub GROUP=quux.biz
refused 'something else' NAME=kudu-kiwi KIND=Queue GROUP=quux.biz
refused 'is a crate' NAME=tokio-util KIND=IbyxHub GROUP=quux.biz
refused 'is the kind' NAME=ibyx-hub KIND=IbyxHub GROUP=quux.biz
touch new
refused 'not committed' NAME=kudu-kiwi KIND=IbyxHub GROUP=quux.biz
git config status.showUntrackedFiles no
refused 'not committed' NAME=kudu-kiwi KIND=IbyxHub GROUP=quux.biz
git config --unset status.showUntrackedFiles
rm new
[ -z "$(git status --porcelain)" ] || fail 'something is changed'

say 'what ends half way is undone'
# Otherwise it would be a matter of luck whether git is at work at the signal: this git takes a second for `mv`.
mkdir "$caches/slow"
printf '#!/usr/bin/env bash\n[ "$1" != mv ] || { trap "" TERM; sleep 1; }\nexec %s "$@"\n' "$(command -v git)" >"$caches/slow/git"
chmod +x "$caches/slow/git"
PATH=$caches/slow:$PATH setsid --wait make fork NAME=kudu-kiwi KIND=IbyxHub GROUP=quux.biz >"$caches/said" 2>&1 &
half=$!
until git ls-files | grep -q ibyx; do kill -0 $half || fail 'it was not seen at it'; sleep 0.1; done
session=$(ps -o sid= -p "$(pgrep -o -P $half)" | tr -d ' ')
pkill -TERM -s "$session"
! wait $half || fail 'it was not ended'
timeout 60 bash -c "while pgrep -s $session >/dev/null; do sleep 0.1; done" # make does not wait for it
grep -q 'what was is undone' "$caches/said" || { cat "$caches/said" >&2; fail 'it does not say so'; }
[ -z "$(git status --porcelain)" ] || fail 'something is changed'

say 'a fork'
# The longest possible kind: the patches of the page must fit the lines that rustfmt makes with it.
kind=IbyxHubJigguzQuizDivvyWhizzKubuYxiG lower=${kind,,}
make fork NAME=kudu-kiwi KIND=$kind GROUP=quux.biz PLURAL=${lower}bi SHORT=ix
[ -z "$(git status --porcelain | grep -v '^[MARD]  ')" ] || fail 'not all of it is staged'
git diff --cached --quiet -- crates/runtime || fail 'the runtime is changed'
# The upstream project may be named where this one differs from it, and Kubernetes has an example of its own.
left=$(git grep --cached -inE 'foo|sample-?_?controller|\bfo\b|api-approved|annotated as a|make fork|fork\.sh' -- ':!*.sum' |
  grep -vE 'foo\.example\.com|(kubernetes|k8s\.io)/sample-controller|ifferences[ -]from[ -]sample-controller|^docs/design.md:[0-9]+:\| \| sample-controller \|' || true)
# A selector must not match the pods of the original either.
left+=$(git grep --cached -nE '\bapp\b.{0,12}nginx' || true)
left+=$(git ls-files | grep -iE 'foo|sample-?_?controller|fork' || true)
[ -z "$left" ] || fail "what is left: $left"
grep -q '^The first release, .*, is made of this\.$' CHANGELOG.md || fail 'its changelog is not what tests/delivery/release.rs asks for'
! git grep --cached -nE "(^|[^A-Za-z'])[Aa][ _-][\`*]?[Ii]byx" || fail 'an article'

say 'its first change, unit tests and demo'
steps=$(sed -n '/^## A Service as well/,/^```$/s/^\$ //p' docs/make-it-yours.md)
[ "$(tail -n 1 <<<"$steps")" = 'make demo' ] || fail "the page has other steps: $steps"
DEMO_ONCE=1 bash -euxo pipefail -c "$steps" | tee "$caches/demo"
grep -q "^service/$lower-sample " "$caches/demo" || fail 'no Service'

say 'its second kind'
steps=$(sed -n '/^## A second kind/,/^```$/s/^\$ //p' docs/make-it-yours.md)
[[ $steps == *'git apply'*'make generate'* ]] || fail "the page has other steps: $steps"
bash -euxo pipefail -c "$steps"

say 'its checks'
cargo fmt --check
cargo clippy --locked --workspace --all-targets -- -D warnings

say 'its installation'
coproc "$CARGO_TARGET_DIR/debug/xtask" cluster --controllers
plane=$COPROC_PID to_plane=${COPROC[1]}
IFS= read -r ready <&"${COPROC[0]}" || fail 'no control plane'
KUBECONFIG=$(sed -E 's/.*"kubeconfig":"([^"]*)".*/\1/' <<<"$ready") PATH=$bin:$PATH
export KUBECONFIG PATH
kubectl apply -k deploy
kubectl wait --for=condition=Established --timeout=60s crd/${lower}bi.quux.biz
kubectl wait --for=condition=Available --timeout=60s --namespace kudu-kiwi-system deployment/kudu-kiwi
# With only the permissions of its account, those for the Service included.
account=$caches/kubeconfig token=$(kubectl create token kudu-kiwi --namespace kudu-kiwi-system)
kubectl config view --raw --flatten >"$account"
kubectl --kubeconfig "$account" config set-credentials kudu-kiwi --token "$token"
kubectl --kubeconfig "$account" config set-context --current --user kudu-kiwi
KUBECONFIG=$account "$CARGO_TARGET_DIR/debug/kudu-kiwi" run --leader-election=false --http-addr=127.0.0.1:0 2>"$caches/log" &
controller=$!
kubectl apply -f config/samples/$lower.yaml
kubectl wait --for=condition=Ready --timeout=60s $lower/$lower-sample || { cat "$caches/log" >&2; fail 'not Ready'; }
kubectl get ix,service,deployment
kubectl get service/$lower-sample -o jsonpath='{.metadata.ownerReferences[0].kind}' | grep -qx $kind || fail 'no Service of its own'
kubectl apply -f - <<<"{apiVersion: quux.biz/v1alpha1, kind: Greeting, metadata: {name: first}, spec: {name: Ada}}"
kubectl wait --for=condition=Ready --timeout=60s greeting/first || { cat "$caches/log" >&2; fail 'the Greeting is not Ready'; }
kubectl get configmap/first -o jsonpath='{.data.text}' | grep -qx 'Hello Ada!' || fail 'no ConfigMap of the Greeting'
say 'all well'
