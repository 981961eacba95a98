#!/usr/bin/env bash
# k8s.io/apiextensions-apiserver 0.35.4 and 0.36.3, the validator of custom resources of Kubernetes 1.35 and 1.36.
# Expected: a CRD with `type: integer` and `format: int32` rejects 3000000000, as the tools that generate such CRDs from int32
# fields assume; and a CRD means the same in both versions.
# Seen: 0.35.4 ignores the format and accepts the number, so a client with an int32 field cannot decode the object. 0.36.3 rejects
# it. An object that 1.35 stored is therefore invalid on 1.36, where only unchanged fields may stay so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export GOWORK=off GOFLAGS=-mod=mod
for version in 0.35.4 0.36.3; do
  mkdir "$folder/$version"
  cd "$folder/$version"
  printf 'module number\n\ngo 1.24\n\nrequire (\n\tk8s.io/api v%s\n\tk8s.io/apiextensions-apiserver v%s\n\tk8s.io/apimachinery v%s\n\tk8s.io/apiserver v%s\n)\n' \
    $version $version $version $version >go.mod
  cat >main.go <<'GO'
package main

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func main() {
	schema := &apiextensions.JSONSchemaProps{Type: "integer", Format: "int32"}
	validator, _, err := validation.NewSchemaValidator(schema)
	if err != nil {
		panic(err)
	}
	for _, number := range []int64{2147483647, 3000000000} {
		fmt.Println(number, validation.ValidateCustomResource(field.NewPath("spec"), number, validator))
	}
}
GO
  go run . 2>errors | sed "s/^/$version: /" || { cat errors; exit 1; }
done | tee "$folder/output"
diff "$folder/output" - <<'EXPECTED'
0.35.4: 2147483647 []
0.35.4: 3000000000 []
0.36.3: 2147483647 []
0.36.3: 3000000000 [spec: Invalid value: "": Checked value must be of type integer with format int32 in ]
EXPECTED
