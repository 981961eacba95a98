#!/usr/bin/env bash
# Kubernetes 1.36.3, packages of kube-apiserver: the labels of a new Job without labels of its own.
# Expected: the default copies the labels of the pod template. The labels that the API server generates for the pods
# (`controller-uid`, `job-name`, with and without prefix) are set later and only there, or in both places in each case.
# Seen: it depends on the template. If that has a label, the default makes both maps one, so the Job itself gets the generated
# labels. If the template has none, the Job is stored without labels. As the default also runs when the stored Job is read, all
# generated labels appear then, although nothing has changed the Job. With a label of its own, a Job gets none of them.
set -euo pipefail
version=1.36.3
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"
export GOWORK=off GOFLAGS=-modcacherw

printf 'module labels\n\ngo 1.26\n\nrequire k8s.io/kubernetes v%s\n' $version >go.mod
source=$(go mod download -json k8s.io/kubernetes@v$version | sed -nE 's/^\t"Dir": "(.*)",?$/\1/p')
# The published module refers to the folders of its repository, which are modules of their own.
sed -nE "s|^\t(k8s.io/[^ ]*) => \./staging/.*|replace \1 => \1 v0.${version#1.}|p" "$source/go.mod" >>go.mod
cat "$source/go.sum" >go.sum

cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/registry/batch/job"
)

func names(labels map[string]string) []string {
	all := []string{}
	for name := range labels {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	codec := legacyscheme.Codecs.LegacyCodec(batchv1.SchemeGroupVersion)
	for _, one := range []struct {
		title     string
		job, pods map[string]string
	}{
		{"label on the pods", nil, map[string]string{"app": "a"}},
		{"no label", nil, nil},
		{"label on both", map[string]string{"app": "a"}, map[string]string{"app": "a"}},
	} {
		sent := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "backup", Namespace: "shop", UID: "1", Labels: one.job}}
		sent.Spec.Template.Labels = one.pods
		sent.Spec.Template.Spec = corev1.PodSpec{RestartPolicy: "Never", Containers: []corev1.Container{{Name: "a", Image: "a"}}}
		sent.APIVersion, sent.Kind = "batch/v1", "Job"
		body, err := runtime.Encode(codec, sent)
		must(err)
		decoded, err := runtime.Decode(codec, body)
		must(err)
		created := decoded.(*batch.Job)
		job.Strategy.PrepareForCreate(context.Background(), created)
		stored, err := runtime.Encode(codec, created)
		must(err)
		fmt.Println(one.title, "- stored:", names(created.Labels))
		read, err := runtime.Decode(codec, stored)
		must(err)
		fmt.Println(one.title, "- read:", names(read.(*batch.Job).Labels))
	}
}
GO
go build -mod=mod -o labels . 2>log || { tail -5 log; exit 1; }
./labels >output
cat output
generated='batch.kubernetes.io/controller-uid batch.kubernetes.io/job-name controller-uid job-name'
shows() { grep -qxF -- "$1" output || { echo "changed: no line \"$1\""; exit 1; }; }
shows "label on the pods - stored: [app $generated]"
shows "no label - stored: []"
shows "no label - read: [$generated]"
shows "label on both - stored: [app]"
shows "label on both - read: [app]"
echo "as described"
