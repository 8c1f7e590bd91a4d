{{- define "wopproxy.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "wopproxy.injector" -}}
{{ include "wopproxy.name" . }}-injector
{{- end }}

{{- define "wopproxy.account" -}}
{{ .Values.serviceAccount.name | default (include "wopproxy.injector" .) }}
{{- end }}

{{/* The Secret of the webhook's certificate: the injector's own, or cert-manager's. */}}
{{- define "wopproxy.certificate" -}}
{{ include "wopproxy.injector" . }}-tls
{{- end }}

{{/* The authority that cert-manager signs it with, if no other is named. */}}
{{- define "wopproxy.authority" -}}
{{ include "wopproxy.injector" . }}-ca
{{- end }}

{{/* Cluster-wide objects carry the namespace in their names: two releases of one name
     may live in two namespaces. */}}
{{- define "wopproxy.global" -}}
{{ include "wopproxy.injector" . }}.{{ .Release.Namespace }}
{{- end }}

{{- define "wopproxy.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "wopproxy.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: injector
{{- end }}

{{- define "wopproxy.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What the Pod Security Standard "restricted" asks of every container. */}}
{{- define "wopproxy.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "wopproxy.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: { type: RuntimeDefault }
{{- end }}
