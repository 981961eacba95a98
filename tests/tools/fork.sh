#!/usr/bin/env bash
# fork.sh: turns this working copy into another operator. NAME, KIND, GROUP and optionally PLURAL and SHORT are environment
# variables, so that no shell interprets their values. The project, its kind and its API group are renamed in every file and
# path, and the generated files are generated again. If the script ends before that is complete, all changes are undone.
set -euo pipefail
cd "$(git -C "$(dirname "${BASH_SOURCE[0]}")" rev-parse --show-toplevel)"

usage='usage: make fork NAME=tea-controller KIND=Teapot GROUP=example.org [PLURAL=teapots] [SHORT=tp]'
fail() { echo "$1; $usage" >&2; exit 2; }
name=${NAME-} kind=${KIND-} group=${GROUP-}
[ -n "$name" ] && [ -n "$kind" ] && [ -n "$group" ] || fail 'NAME, KIND and GROUP are needed'
command -v perl >/dev/null || fail 'perl is not on PATH'
rustfmt --edition 2024 <<<'struct It;' >/dev/null || fail 'rustfmt does not work'
lower=${kind,,}
plural=${PLURAL:-${lower}s} short=${SHORT-}

label='[a-z0-9]([-a-z0-9]*[a-z0-9])?'
[[ $name =~ ^[a-z][a-z0-9]*(-[a-z0-9]+)*$ && ${#name} -le 40 ]] ||
  fail "NAME=$name is not of at most 40 small letters, digits and single hyphens, with a letter first"
[[ $kind =~ ^[A-Z][A-Za-z0-9]+$ && ${#kind} -le 35 ]] || fail "KIND=$kind is not of at most 35 letters and digits, with a capital letter first"
[[ $group =~ ^$label(\.$label)+$ && ${#group} -le 200 ]] || fail "GROUP=$group is no domain in small letters"
[[ $group =~ \.[a-z][^.]*$ ]] || fail "GROUP=$group ends with a number"
for word in "$name" "$lower" "$plural" "$short"; do
  case $word in null | true | false | on | off | yes | no | y | n) fail "$word is no text in YAML" ;; esac
done
[[ ! $group =~ (^|\.)(k8s|kubernetes)\.io$ ]] || fail "GROUP=$group is Kubernetes' own, and takes its approval"
[[ $plural =~ ^[a-z][a-z0-9]+$ && ${#plural} -le 50 && $plural != "$lower" ]] || fail "PLURAL=$plural is no word in small letters, other than $lower"

# Kubernetes' own words: kubectl would mistake the kind for one of them.
k8s=' all cj cm cr crd crds cs csr ctb deploy ds ep ev hpa ing ip limits netpol no ns pc pcr pdb po pv pvc quota rc rs sa sc sts svc vac '
kinds=' apiservice binding certificatesigningrequest clusterrole clusterrolebinding clustertrustbundle componentstatus configmap
  controllerrevision cronjob csidriver csinode csistoragecapacity customresourcedefinition daemonset deployment deviceclass
  devicetaintrule endpoints endpointslice event eviction flowschema horizontalpodautoscaler ingress ingressclass ipaddress job lease
  leasecandidate limitrange localsubjectaccessreview mutatingadmissionpolicy mutatingadmissionpolicybinding
  mutatingwebhookconfiguration namespace networkpolicy node persistentvolume persistentvolumeclaim pod podcertificaterequest
  poddisruptionbudget podtemplate priorityclass prioritylevelconfiguration replicaset replicationcontroller resourceclaim
  resourceclaimtemplate resourcequota resourceslice role rolebinding runtimeclass scale secret selfsubjectaccessreview
  selfsubjectreview selfsubjectrulesreview service serviceaccount servicecidr statefulset storageclass storageversion
  storageversionmigration subjectaccessreview tokenrequest tokenreview validatingadmissionpolicy validatingadmissionpolicybinding
  validatingwebhookconfiguration volumeattachment volumeattributesclass workload '
own() { # word: whether it is a short name, a kind or the plural of a kind
  local one
  for one in $k8s; do [ "$1" != "$one" ] || return 0; done
  for one in $kinds; do case $1 in "$one" | "${one}s" | "${one}es" | "${one%y}ies") return 0 ;; esac; done
  return 1
}
if [ -z "$short" ]; then
  for short in "${lower:0:1}${lower: -1}" "${lower:0:2}${lower: -1}" "${lower:0:1}x" "${lower:0:1}z"; do
    [ "$short" = "$lower" ] || [ "$short" = "$plural" ] || own "$short" || break
  done
fi
[[ $short =~ ^[a-z][a-z0-9]*$ && $short != "$lower" && $short != "$plural" ]] && ! own "$short" ||
  fail "SHORT=$short is no word in small letters, other than $lower, $plural and what Kubernetes has"
! own "$lower" || fail "KIND=$kind is Kubernetes' own, or the short name of one"
! own "$plural" || fail "PLURAL=$plural is Kubernetes' own"

# Words of the code: it would not compile, or not be readable. benches/peer is in Go.
case $lower in
  break | case | chan | const | continue | default | defer | else | fallthrough | for | func | go | goto | if | import | interface | \
    map | package | range | return | select | struct | switch | type | var)
    fail "KIND=$kind is a word of Go's" ;;
esac
rustfmt --edition 2024 <<<"struct $kind; mod $lower {} mod $plural {} mod ${name//-/_} {}" >/dev/null 2>&1 ||
  fail "NAME=$name, KIND=$kind or PLURAL=$plural is a word of Rust's"
used=$(git ls-files -z -- 'src/*.rs' 'tests/*.rs' 'crates/simulation/*.rs' 'crates/testkit/*.rs' 'xtask/*.rs' 'benches/*.rs' 'benches/*.go' | words="$kind|$lower|$plural|${kind^^}|${plural^^}|${name//-/_}" xargs -0 perl -ne '
  s/"(?:[^"\\]|\\.)*"//g; s{//.*}{};
  if (/\b(?:$ENV{words})\b/) { print "$ARGV: $_"; exit }')
[ -z "$used" ] || fail "NAME=$name, KIND=$kind or PLURAL=$plural is what the code calls something else, as in ${used%%$'\n'*}"
! grep -qxE "name = \"(${name//[-_]/[-_]}|$lower)\"" Cargo.toml Cargo.lock || fail "NAME=$name or KIND=$kind is a crate that this takes, or makes"
[ "${name//-/}" != "$lower" ] || fail "NAME=$name is the kind"
case $name in build | deps | examples | incremental | core | std | alloc | test | proc-macro) fail "NAME=$name is a crate of Rust's, or a folder of cargo's" ;; esac

# Old names and new names.
export name kind group lower plural short
rename=$(cat <<'PERL'
  BEGIN {
    $/ = undef;
    my ($name, $kind, $lower, $plural) = @ENV{qw(name kind lower plural)};
    my $camel = join "", map { ucfirst } split /-/, $name;
    my $kinds = $plural =~ /^\Q$lower\E(.*)/ ? $kind . $1 : ucfirst $plural;
    %new = (
      "samplecontroller.k8s.io" => $ENV{group}, "\"sample-controller\"" => "\"$name\"", "`sample-controller`" => "`$name`",
      "foo-controller" => $name, "foo_controller" => $name =~ tr/-/_/r, "FOO_CONTROLLER" => uc($name =~ tr/-/_/r),
      "FooController" => $camel, "foocontroller" => lc $camel, "foo-system" => "$name-system", "foo-collector" => "$name-collector",
      "FOOS" => uc $plural, "Foos" => $kinds, "foos" => $plural, "FOO" => uc $kind, "Foo" => $kind, "foo" => $lower,
      "\"fo\"" => "\"$ENV{short}\"", "`fo`" => "`$ENV{short}`", "- fo\n" => "- $ENV{short}\n",
    );
    $old = join "|", map { quotemeta } sort { length $b <=> length $a || $a cmp $b } keys %new;
    # A line, also of a comment, may end between an article and its word. A lifetime ('a) is not an article.
    $between = qr{(?:[ _-]|\n *(?:///? |//! |# )?)[`*"]?};
    # By pronunciation: an update, a user, an HTTPRoute.
    sub n {
      local $_ = shift;
      /^[AEFHILMNORSX][A-Z0-9]/ || /^[aeiou]/i && !/^(?:eu|one|uni(?![mn])|u[st][aeiou]|(?-i:U[A-Z0-9]))/i ? "n" : "";
    }
  }
  s{(?:(?<![A-Za-z0-9\x27])([Aa])($between))?($old)}{
    my $new = $new{$3};
    defined $1 ? $1 . n($new) . $2 . $new : $new;
  }ge;
  # A separate label, because the Deployments of the original operator have this one. The container and the image stay.
  s{(\bapp["\]\}]*\s*(?::|==?|,)\s*(?:Some\()?"?|\bAPP: &str = ")nginx\b}{$1$ENV{lower}}g;
PERL
)
clash=$(git ls-files | perl -pe "$rename" | sort | uniq -d)
[ -z "$clash" ] || fail "KIND=$kind or PLURAL=$plural has a file here: $clash"

cargo fetch --locked # With the old Cargo.lock, so that nothing is downloaded later.
[ -z "$(git status --porcelain --untracked-files=normal)" ] ||
  fail 'there are changes that are not committed, which would be mixed with these'

# The changes run in their own process group. They are undone only after all its processes have ended: otherwise a process could
# continue with them, or hold git's lock.
undo() {
  trap '' INT QUIT TERM HUP
  local signal
  for signal in TERM KILL; do
    kill -$signal -- "-${!-}" && kill -CONT -- "-$!" || break
    for _ in {1..100}; do kill -0 -- "-$!" || break 2; sleep 0.1; done
  done 2>/dev/null
  # Another git, such as an editor's, may hold the lock for a moment. Everything was committed, so the reset loses nothing.
  for _ in {1..50}; do
    if git reset --quiet --hard 2>/dev/null && git clean --quiet --force -d; then
      echo 'it is not done, and what was is undone' >&2
      return
    fi
    sleep 0.1
  done
  echo 'it is not done, and not undone either: git reset --hard && git clean -fd' >&2
}
ended() { # status; a second signal must not end the undoing
  trap '' INT QUIT TERM HUP
  exit "$1"
}

change() {
  # Removes the parts that only this project needs: this script, its test, the history, and the rules for Kubernetes' own
  # groups.
  git rm --quiet tests/tools/fork.sh tests/fork.sh
  sed -i -e '/^fork:/,/^$/d' -e '/^\.PHONY/s/ fork / /' Makefile
  sed -i '/fork\.sh/d' .ci/run
  sed -i '/fork\.sh/d' tests/README.md
  perl -0pi -e 's/^    \(\n? *"make fork.*?\),\n//msg' tests/delivery/manifests/docs/commands.rs
  perl -0pi -e 's/^## A fork\n.*?(?=^### A newer)//ms; s/^##(?=# A newer)//m; s/^.*\(#a-fork\).*\n//m' docs/make-it-yours.md
  perl -0pi -e 's/(?<=^## Unreleased\n\n).*//ms' CHANGELOG.md
  git grep -lz api-approved -- '*.rs' | xargs -0 sed -i '/api-approved/d'
  sed -i 's/ The CRD has the annotation that a `\*\.k8s\.io` group needs\.//' docs/guarantees.md
  sed -i '/^# A Foo is what/,+1d' Cargo.toml benches/kube-rs/Cargo.toml
  # A common word may occur in the libraries, in which tests search for the kind. An API group does not occur there.
  if git grep -qi "$lower" -- crates/runtime/{src,Cargo.toml} crates/simulation; then
    sed -i 's/^const OURS: &str = "foo"/const OURS: \&str = "samplecontroller.k8s.io"/' tests/delivery/manifests.rs
  fi

  # The longest match applies. The upstream project keeps its name, and the runtime names no kind.
  git ls-files -z -- . ':!crates/runtime' ':!*.sum' ':!flake.lock' ':!LICENSE' | xargs -0 perl -pi -e "$rename"
  paste <(git ls-files) <(git ls-files | perl -pe "$rename") | while IFS=$'\t' read -r old new; do
    [ "$old" = "$new" ] || { mkdir -p "${new%/*}"; git mv "$old" "$new"; }
  done

  # Sorted and generated parts. With a longer name, rustfmt breaks more lines. clippy takes a word with inner capital letters
  # for code, unless it is configured.
  printf '# By a longer name the same function has more lines.\ntoo-many-lines-threshold = 150\n' >clippy.toml
  if [[ $kind =~ ^.+[A-Z] ]]; then
    printf '# The kind, in plain text.\ndoc-valid-idents = ["%s", "%s", ".."]\n' "$kind" "$(perl -pe "$rename" <<<Foos)" >>clippy.toml
  fi
  version=$(sed -n '0,/^version = /s/^version = "\(.*\)"$/\1/p' Cargo.toml)
  printf '%s\n' "The first release, $version, is made of this." '' '### Added' '' \
    "- Each $kind gets a Deployment ([what it does](docs/$lower.md))." >>CHANGELOG.md
  cargo metadata --format-version 1 --offline >/dev/null
  cargo fmt
  make generate
  git add --all
}
trap undo EXIT
trap 'ended 130' INT QUIT
trap 'ended 143' TERM HUP
set -m
change </dev/null &
set +m # The terminal keeps its process group.
wait $!

trap - EXIT

# The fork uses the existing builds for the demo and the tests.
cache=${XDG_CACHE_HOME:-$HOME/.cache}
if [ -d "$cache/foo-controller" ] && [ ! -e "$cache/$name" ]; then ln -s foo-controller "$cache/$name"; fi
echo "
This is $name now, for the kind $kind ($plural.$group). All of it is staged: git diff --cached --stat.
Next: make demo, and git commit. docs/make-it-yours.md goes on from there."
