#!/usr/bin/env bash
# Kubernetes 1.36.3, packages of kube-apiserver: the default of `imagePullPolicy` for an image with a digest.
# Expected: `IfNotPresent`, because a digest names the same content forever. The documentation says so of images by digest.
# Seen: that holds only without a tag, or with another tag than `latest`. `repository:latest@sha256:…` gets `Always`: the default
# reads the tag beside the digest. A tool that adds the digest to `latest` so makes each start of a container ask the registry. An
# image that is no valid reference, such as the placeholder of a template, gets `IfNotPresent`, although it names no digest.
set -euo pipefail
version=1.36.3
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"
export GOWORK=off GOFLAGS=-modcacherw

printf 'module policy\n\ngo 1.26\n\nrequire k8s.io/kubernetes v%s\n' $version >go.mod
source=$(go mod download -json k8s.io/kubernetes@v$version | sed -nE 's/^\t"Dir": "(.*)",?$/\1/p')
# The published module refers to the folders of its repository, which are modules of their own.
sed -nE "s|^\t(k8s.io/[^ ]*) => \./staging/.*|replace \1 => \1 v0.${version#1.}|p" "$source/go.mod" >>go.mod
cat "$source/go.sum" >go.sum

cat >main.go <<'GO'
package main

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
)

func main() {
	digest := "@sha256:" + strings.Repeat("0123456789abcdef", 4)
	for _, image := range []string{"nginx", "nginx:latest", "nginx:1.27", "nginx" + digest, "nginx:1.27" + digest, "nginx:latest" + digest, "IMAGE"} {
		pod := corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: image}}}}
		legacyscheme.Scheme.Default(&pod)
		fmt.Println(strings.Replace(image, digest, "@sha256:…", 1), pod.Spec.Containers[0].ImagePullPolicy)
	}
}
GO
go build -mod=mod -o policy . 2>log || { tail -5 log; exit 1; }
./policy | tee output
diff output - <<'SEEN'
nginx Always
nginx:latest Always
nginx:1.27 IfNotPresent
nginx@sha256:… IfNotPresent
nginx:1.27@sha256:… IfNotPresent
nginx:latest@sha256:… Always
IMAGE IfNotPresent
SEEN
