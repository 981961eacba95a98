#!/usr/bin/env bash
# k8s.io/client-go 0.37.0 (Go), a typed client whose `rest.Config` has no ContentType.
# Expected: JSON. The comment of the field says: "If not set, "application/json" is used."
# Seen: the typed clients of built-in kinds send protobuf, and do not fall back to JSON after a response 415 (Unsupported Media
# Type). So a server for tests that serves JSON alone receives bodies that it cannot read, until the program sets the field.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export GOFLAGS=-mod=mod GOWORK=off
cd "$folder"
cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func main() {
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		fmt.Println(request.Method, request.Header.Get("Content-Type"))
		answer.WriteHeader(http.StatusUnsupportedMediaType)
	}))
	for _, format := range []string{"", "application/json"} {
		fmt.Printf("ContentType: %q\n", format)
		config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: format}}
		leases := kubernetes.NewForConfigOrDie(config).CoordinationV1().Leases("default")
		_, err := leases.Create(context.Background(), &coordination.Lease{}, meta.CreateOptions{})
		fmt.Println("failed:", err != nil)
	}
}
GO
go mod init content 2>/dev/null
go get k8s.io/client-go@v0.37.0 2>/dev/null
go run . | tee output
diff output - <<'EXPECTED'
ContentType: ""
POST application/vnd.kubernetes.protobuf
failed: true
ContentType: "application/json"
POST application/json
failed: true
EXPECTED
