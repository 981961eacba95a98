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
{{- .Values.serviceAccount.name | default "default" -}}
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
app.kubernetes.io/instance: {{ .Release.Name }}
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
