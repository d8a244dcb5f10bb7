{{/* The name of the objects of a release. */}}
{{- define "capelin.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else if hasPrefix (printf "%s-" .Release.Name) .Chart.Name -}}
{{- .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/*
The name of objects without a namespace. clusterctl removes a ClusterRole only if its name begins
with the provider's namespace.
*/}}
{{- define "capelin.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "capelin.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "capelin.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "capelin.labels" -}}
{{ include "capelin.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with index .Chart.Annotations "app.kubernetes.io/part-of" }}
app.kubernetes.io/part-of: {{ . }}
{{- end }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with index .Chart.Annotations "cluster.x-k8s.io/provider" }}
cluster.x-k8s.io/provider: {{ . }}
{{- end }}
{{- end }}

{{/* Metadata of an object in the namespace of the release. */}}
{{- define "capelin.metadata" -}}
name: {{ include "capelin.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "capelin.labels" . | nindent 2 }}
{{- end }}

{{- define "capelin.image" -}}
{{- $tag := .Values.image.tag | default (printf "v%s" .Chart.AppVersion) -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository $tag -}}
{{- end -}}
{{- end }}
