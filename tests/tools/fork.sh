#!/usr/bin/env bash
# fork.sh NAME KIND GROUP [PLURAL [SHORT]]: makes another operator of this working copy: its name, its kind and its API group are
# changed in every file and every path, and what is generated is generated anew. Git has what it was before.
set -euo pipefail
cd "$(git -C "$(dirname "${BASH_SOURCE[0]}")" rev-parse --show-toplevel)"

usage='usage: make fork NAME=tea-controller KIND=Teapot GROUP=example.org [PLURAL=teapots] [SHORT=tp]'
fail() { echo "$1; $usage" >&2; exit 2; }
[ $# -ge 3 ] && [ -n "$1" ] && [ -n "$2" ] && [ -n "$3" ] || fail 'NAME, KIND and GROUP are needed'
name=$1 kind=$2 group=$3 plural=${4:-} short=${5:-}
lower=${kind,,}
plural=${plural:-${lower}s} short=${short:-${lower:0:1}${lower: -1}}
label='^[a-z]([-a-z0-9]*[a-z0-9])?$'
[[ $name =~ $label && ${#name} -le 40 ]] || fail "NAME=$name is no DNS label of at most 40 letters, digits and hyphens that begins with a letter"
[[ $kind =~ ^[A-Z][A-Za-z0-9]+$ && ${#kind} -le 40 ]] || fail "KIND=$kind is no word that begins with a capital letter, with at most 40 letters and digits"
[[ $group =~ ^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$ ]] || fail "GROUP=$group is no domain"
[[ ! $group =~ (^|\.)(k8s|kubernetes)\.io$ ]] || fail "GROUP=$group is Kubernetes' own, and takes its approval"
[[ $plural =~ ^[a-z][a-z0-9]+$ && $plural != "$lower" ]] || fail "PLURAL=$plural is no word in small letters, other than $lower"
[[ $short =~ ^[a-z][a-z0-9]*$ && $short != "$lower" && $short != "$plural" ]] || fail "SHORT=$short is no word in small letters, other than $lower and $plural"
# Words that the code has for something else: it would not compile, or not be understood.
case $lower in
  deployment | lease | event | namespace | secret | pod | service | object | kind | key | queue | worker | controller | primary | \
    status | spec | client | error | replica | term | watch | scope | config | record | writer | fence | true | false | self | type)
    fail "KIND=$kind is a word that the code has for something else" ;;
esac
git grep -q foo-controller -- Cargo.toml || fail 'this is a fork already'
git diff --quiet HEAD || fail 'there are changes that are not committed, which would be mixed with these'

export name kind group lower plural short
# What is longer goes first. The upstream project keeps its name.
rename() {
  perl -pe '
    BEGIN {
      my ($name, $kind, $plural) = @ENV{qw(name kind plural)};
      my $camel = join "", map { ucfirst } split /-/, $name;
      my $kinds = $plural =~ /^\Q$ENV{lower}\E(.*)/ ? $kind . $1 : ucfirst $plural;
      %new = (
        "samplecontroller.k8s.io" => $ENV{group}, "\"sample-controller\"" => "\"$name\"",
        "foo-controller" => $name, "foo_controller" => $name =~ tr/-/_/r, "FOO_CONTROLLER" => uc($name =~ tr/-/_/r),
        "FooController" => $camel, "foocontroller" => lc $camel, "foo-system" => "$name-system", "foo-collector" => "$name-collector",
        "FOOS" => uc $plural, "Foos" => $kinds, "foos" => $plural, "FOO" => uc $kind, "Foo" => $kind, "foo" => lc $kind,
        "\"fo\"" => "\"$ENV{short}\"", "`fo`" => "`$ENV{short}`", "- fo\n" => "- $ENV{short}\n",
      );
      $old = join "|", map { quotemeta } sort { length $b <=> length $a || $a cmp $b } keys %new;
      $vowel = $kind =~ /^[AEIOU]/;
    }
    s/\b([Aa]) (?=[`*]?[Ff]oo(?!-))/$1n /g if $vowel;
    s/($old)/$new{$1}/g;
  '
}

# A fork is made of this once.
git rm --quiet tests/tools/fork.sh
sed -i -e '/^fork:/,/^$/d' -e '/^\.PHONY/s/ fork / /' Makefile

git ls-files | while read -r old; do
  new=$(rename <<<"$old")
  case $old in
    flake.lock | *.sum | LICENSE) ;;
    *) if grep -qI . "$old"; then rename <"$old" >"$old.new" && cat "$old.new" >"$old" && rm "$old.new"; fi ;;
  esac
  if [ "$old" != "$new" ]; then mkdir -p "$(dirname "$new")" && git mv "$old" "$new"; fi
done

# Only a group of Kubernetes own asks for that.
sed -i "/api-approved.kubernetes.io/d" src/*/api.rs
cargo metadata --format-version 1 --offline >/dev/null # Cargo.lock is in the order of names
cargo fmt
make generate
git add --all
echo "This is $name, of $kind ($plural.$group), not committed yet: git status. docs/make-it-yours.md goes on from here."
