#!/usr/bin/env bash
# k8s.io/apimachinery 0.36.3, Quantity, as the API server reads and writes it.
# Expected: the canonical form of a quantity with a binary suffix keeps a binary suffix: 0.5Gi is 512Mi, so 0.1Gi is about 102Mi.
# Seen: a binary suffix needs a whole number. 0.5Gi becomes 512Mi, but 0.1Gi becomes 107374182400m, thousandths of a byte. A client
# that reads memory by binary suffixes only fails for a value that the user wrote with one. The same holds for 1.1Ki; and 1.5k,
# without the i, becomes 1500.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export GOWORK=off GOFLAGS=-mod=mod
printf 'module quantities\n\ngo 1.24\n\nrequire k8s.io/apimachinery v0.36.3\n' >go.mod
cat >main.go <<'GO'
package main

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
)

func main() {
	for _, text := range []string{`"0.5Gi"`, `"0.1Gi"`, `"1.1Ki"`, `"1.5k"`, `"1024Mi"`} {
		var quantity resource.Quantity
		if err := json.Unmarshal([]byte(text), &quantity); err != nil {
			panic(err)
		}
		written, err := json.Marshal(quantity)
		if err != nil {
			panic(err)
		}
		fmt.Println(text, string(written))
	}
}
GO
go run . 2>errors | tee output || { cat errors; exit 1; }
diff output - <<'EXPECTED'
"0.5Gi" "512Mi"
"0.1Gi" "107374182400m"
"1.1Ki" "1126400m"
"1.5k" "1500"
"1024Mi" "1Gi"
EXPECTED
