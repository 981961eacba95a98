#!/usr/bin/env bash
# sbom.sh TARGET: prints the bill of materials of the program that is built for this target, as CycloneDX has it: the crates that
# are linked into it, with their licences and the checksums of Cargo.lock. No time and no number of its own is in it: it is the
# same whoever makes it, and whenever. Takes cargo and jq.
set -euo pipefail

# Neither what runs at build time alone, nor what tests take; and of features, those without the tests'.
tree=$(cargo tree --frozen --package foo-controller --edges normal,no-proc-macro --target "$1" --prefix depth --format '|{p}|{l}')
sums=$(awk -F '"' '/^name/ { name = $2 } /^version/ { version = $2 } /^checksum/ { print name, version, $2 }' Cargo.lock)
jq --null-input --arg tree "$tree" --arg sums "$sums" '
  def purl: "pkg:cargo/\(.name)@\(.version | @uri)";
  def lines: split("\n") | .[] | select(. != "");

  ($sums | [lines | split(" ") | {key: "\(.[0]) \(.[1])", value: .[2]}] | from_entries) as $sums
  | [$tree | lines | capture("^(?<depth>\\d+)\\|(?<name>\\S+) v(?<version>[^ |]+).*?\\|(?<license>.*?)( \\(\\*\\))?$")] as $lines
  # Each line is of what the last line before it that is one level up depends on.
  | (reduce $lines[] as $line ({above: [], edges: []};
      ($line.depth | tonumber) as $depth
      | .above = .above[:$depth] + [$line | purl]
      | if $depth > 0 then .edges += [.above[$depth - 1:]] else . end
    ) | .edges | unique) as $edges
  | ($lines | map(del(.depth)) | unique_by([.name, .version])) as $crates
  # What is in no registry has no name there.
  | def published: $sums["\(.name) \(.version)"] != null;
    def component: {"bom-ref": purl, name, version, licenses: [{expression: .license | gsub(" */ *"; " OR ")}]}
      + if published then {purl: purl} else {} end;
    ($lines[0] | purl) as $program
  | {
      bomFormat: "CycloneDX",
      specVersion: "1.6",
      version: 1,
      metadata: {component: ({type: "application"} + ($lines[0] | component))},
      components: [
        $crates[] | select(purl != $program)
        | {type: "library"} + component
          + ($sums["\(.name) \(.version)"] | if . then {hashes: [{alg: "SHA-256", content: .}]} else {} end)
      ],
      dependencies: [$crates[] | purl as $ref | {ref: $ref, dependsOn: [$edges[] | select(.[0] == $ref) | .[1]]}]
    }'
