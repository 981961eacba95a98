#!/usr/bin/env bash
# sbom.sh TARGET: prints the bill of materials of the program for this target in CycloneDX format: the linked crates, with their
# licences and the checksums of Cargo.lock. It contains no time and no serial number, so it is reproducible. Needs cargo and jq.
set -euo pipefail

# Excludes build-time dependencies, dependencies of tests, and features that only tests enable.
tree=$(cargo tree --frozen --package foo-controller --edges normal,no-proc-macro --target "$1" --prefix depth --format '|{p}|{l}')
sums=$(awk -F '"' '/^name/ { name = $2 } /^version/ { version = $2 } /^checksum/ { print name, version, $2 }' Cargo.lock)
jq --null-input --arg tree "$tree" --arg sums "$sums" '
  def purl: "pkg:cargo/\(.name)@\(.version | @uri)";
  def lines: split("\n") | .[] | select(. != "");

  ($sums | [lines | split(" ") | {key: "\(.[0]) \(.[1])", value: .[2]}] | from_entries) as $sums
  | [$tree | lines | capture("^(?<depth>\\d+)\\|(?<name>\\S+) v(?<version>[^ |]+).*?\\|(?<license>.*?)( \\(\\*\\))?$")] as $lines
  # Each crate is a dependency of the last preceding crate one level up.
  | (reduce $lines[] as $line ({above: [], edges: []};
      ($line.depth | tonumber) as $depth
      | .above = .above[:$depth] + [$line | purl]
      | if $depth > 0 then .edges += [.above[$depth - 1:]] else . end
    ) | .edges | unique) as $edges
  | ($lines | map(del(.depth)) | unique_by([.name, .version])) as $crates
  # A crate that is in no registry has no package URL.
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
