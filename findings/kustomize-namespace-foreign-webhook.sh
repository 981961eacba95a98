#!/usr/bin/env bash
# kustomize v5.8.1, the field `namespace` of a kustomization with a CRD whose conversion webhook is a Service of another
# namespace. The kustomization does not contain this Service.
# Expected: the reference stays, as a RoleBinding's reference to a ServiceAccount that is not in the kustomization does.
# Seen: spec.conversion.webhook.clientConfig.service.namespace becomes the namespace of the kustomization. So the API server calls a
# Service that does not exist. The annotation cert-manager.io/inject-ca-from, which names the same namespace, stays.
set -euo pipefail
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"
cat >kustomization.yaml <<'YAML'
namespace: ours
resources: [all.yaml]
YAML
cat >all.yaml <<'YAML'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: bars.example.com
  annotations: {cert-manager.io/inject-ca-from: theirs/bar}
spec:
  conversion:
    webhook: {clientConfig: {service: {name: bar, namespace: theirs}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: bar}
subjects: [{kind: ServiceAccount, name: bar, namespace: theirs}]
YAML
GOBIN=$folder GOFLAGS=-modcacherw go install sigs.k8s.io/kustomize/kustomize/v5@v5.8.1
./kustomize build . | tee seen
grep -qx '    cert-manager.io/inject-ca-from: theirs/bar' seen
[ "$(grep -c '^ *namespace: theirs$' seen)" = 1 ]
grep -A2 '^        service:$' seen | grep -qx '          namespace: ours'
