{{/*
Prefix of all names. A release whose name contains "foo-controller" has the names of `deploy`.
*/}}
{{- define "foo-controller.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains "foo-controller" .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-foo-controller" .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "foo-controller.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "foo-controller.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/*
Name of the fencing policy, its binding and its record. It contains "foo-controller-fencing", by which the controller recognizes
the policy.
*/}}
{{- define "foo-controller.fencing" -}}
{{- $fullname := include "foo-controller.fullname" . -}}
{{- if hasSuffix "foo-controller" $fullname -}}
{{- printf "%s-fencing" $fullname -}}
{{- else -}}
{{- printf "%s-foo-controller-fencing" $fullname -}}
{{- end -}}
{{- end }}

{{- define "foo-controller.image" -}}
{{- with .Values.image.digest -}}
{{- printf "%s@%s" $.Values.image.repository . -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/*
Content of foo-controller.toml.
*/}}
{{- define "foo-controller.configuration" -}}
{{- .Values.configuration | default (.Files.Get "files/foo-controller.toml") -}}
{{- end }}

{{/*
Labels that select the pods of this release. The alerts and the dashboard need the first one.
*/}}
{{- define "foo-controller.selectorLabels" -}}
app.kubernetes.io/name: foo-controller
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/*
Labels of objects that Helm manages.
*/}}
{{- define "foo-controller.helmLabels" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "foo-controller.labels" -}}
{{ include "foo-controller.selectorLabels" . }}
{{ include "foo-controller.helmLabels" . }}
{{- end }}

{{/*
Fails for values that the API server would reject, and for those with which the controller would not work or not be safe.
*/}}
{{- define "foo-controller.checks" -}}
{{- $fullname := include "foo-controller.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $fullname) -}}
{{- fail (printf "%s: not the name of a Service, which begins with a letter and contains lower-case letters, digits and - (set fullnameOverride)" $fullname) -}}
{{- end -}}
{{- if and .Values.fencing.fastFailover (not .Values.fencing.enabled) -}}
{{- fail "fencing.fastFailover needs fencing.enabled: only server-side fencing makes a Lease of 3 s safe" -}}
{{- end -}}
{{- if not .Values.fencing.enabled -}}
{{- /* Empty in a template, and before the first installation. */ -}}
{{- $record := lookup "v1" "ServiceAccount" .Release.Namespace (printf "%s-fencing" $fullname) | default dict -}}
{{- if dig "metadata" "annotations" "samplecontroller.k8s.io/lease-duration" "" $record -}}
{{- fail "the running replicas have a Lease of 3 s, which is not safe without server-side fencing: first upgrade with fencing.enabled=true and fencing.fastFailover=false, and wait for the rollout" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.image.tag .Values.image.digest -}}
{{- fail "image.tag and image.digest are both set: to use the tag, set image.digest=\"\"" -}}
{{- end -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create=false needs serviceAccount.name: all pods of the namespace may use the account \"default\"" -}}
{{- end -}}

{{- $configuration := fromToml (include "foo-controller.configuration" .) -}}
{{- with $configuration.Error -}}
{{- fail (printf "configuration: %s" .) -}}
{{- end -}}
{{- /* Settings that other objects of the release depend on: the default, and the remedy. */ -}}
{{- $fixed := dict
  "installation" (list "" "set the value installation: the Role names the Lease")
  "leader_election.enabled" (list true "the rollout of the chart runs an old and a new pod: use deploy/overlays/dev with kustomize")
  "leader_election.lease_name" (list "foo-controller" "the Role names the Lease: use the value installation or another namespace")
  "leader_election.lease_namespace" (list "" "the Role is in the namespace of the release: install the release there")
  "leader_election.fencing_record" (list "" "set the value fencing.enabled")
  "http.addr" (list "[::]:8080" "the probes use the port 8080")
  "http.metrics_auth" (list false "set the value metricsAuth.enabled")
  "http.metrics_addr" (list "[::]:8443" "the Service uses the port 8443")
-}}
{{- range $setting, $of := $fixed -}}
{{- $usual := index $of 0 -}}
{{- $path := splitList "." $setting -}}
{{- if and (gt (len $path) 1) (not (kindIs "map" (dig (first $path) dict $configuration))) -}}
{{- fail (printf "configuration: %s is not a table: write [%s], and below it its keys" (first $path) (first $path)) -}}
{{- end -}}
{{- $section := ternary $configuration (dig (first $path) dict $configuration) (eq (len $path) 1) -}}
{{- $value := dig (last $path) $usual $section -}}
{{- /* Another address with the same port is possible. */ -}}
{{- if not (or (eq (toString $value) (toString $usual)) (and (hasSuffix "addr" $setting) (hasSuffix (toString $usual | splitList ":" | last | printf ":%s") (toString $value)))) -}}
{{- fail (printf "configuration: %s = %v does not work in the chart: %s" $setting $value (index $of 1)) -}}
{{- end -}}
{{- if and (hasSuffix "addr" $setting) (regexMatch "^(127\\.|localhost:|\\[::1\\])" (toString $value)) -}}
{{- fail (printf "configuration: %s = %v does not work in the chart: the kubelet and Prometheus connect to the address of the pod" $setting $value) -}}
{{- end -}}
{{- $variable := printf "FOO_CONTROLLER__%s" (upper ($setting | replace "." "__")) -}}
{{- range $.Values.extraEnv -}}
{{- if eq .name $variable -}}
{{- fail (printf "extraEnv: %s does not work in the chart: %s" $variable (index $of 1)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- $names := list -}}
{{- range concat (fromYamlArray (include "foo-controller.env" .)) .Values.extraEnv -}}
{{- if has .name $names -}}
{{- fail (printf "extraEnv: %s is set by another value, by the chart itself or twice" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end }}
