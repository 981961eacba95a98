#!/usr/bin/env bash
# kustomize 5.8.1, `namePrefix` on a ValidatingAdmissionPolicy with its binding and its parameter.
# Expected: every reference to a renamed object follows, as it does from a RoleBinding to its Role.
# Seen: the binding's `policyName` gets the prefix and its `paramRef.name` does not. A Role's `resourceNames` follow for a
# ConfigMap and not for a ServiceAccount of the same kustomization. The rendered binding then names a parameter that does not
# exist, and nothing reports it. A replacement in the kustomization is the way out.
set -euo pipefail
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
cd "$folder"
GOBIN=$folder GOFLAGS=-modcacherw go install sigs.k8s.io/kustomize/kustomize/v5@v5.8.1

cat >kustomization.yaml <<'YAML'
namePrefix: east-
resources: [objects.yaml]
YAML
cat >objects.yaml <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: limits, namespace: shop}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: clerk, namespace: shop}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: limits}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]
  validations: [{expression: "object.spec.replicas <= int(params.data['replicas'])"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: limits}
spec:
  policyName: limits
  paramRef: {name: limits, namespace: shop, parameterNotFoundAction: Deny}
  validationActions: [Deny]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: limits, namespace: shop}
rules:
- {apiGroups: [""], resources: [configmaps], resourceNames: [limits], verbs: [get]}
- {apiGroups: [""], resources: [serviceaccounts], resourceNames: [clerk], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: limits, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: limits}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: jane}]
YAML

./kustomize version
./kustomize build . >rendered.yaml
grep -nE '^kind|^  name: |policyName|paramRef|^    name: |^  - (east-)?(limits|clerk)$' rendered.yaml
shows() { grep -qxF -- "$1" rendered.yaml || { echo "changed: no line \"$1\""; exit 1; }; }
shows '  name: east-clerk'
shows '  policyName: east-limits'
shows '    name: limits' # of paramRef
shows '  - east-limits' # of resourceNames
shows '  - clerk'
echo 'as described: policyName and the ConfigMap in resourceNames follow the prefix, paramRef.name and the ServiceAccount do not'
