{{- define "capelin.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "capelin.metadata" . | nindent 2 }}
{{- end }}

{{- define "capelin.subject" -}}
- kind: ServiceAccount
  name: {{ include "capelin.name" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{/*
A role and its binding. Takes a dict: root; suffix, for the name; namespace, empty for the whole
cluster; rules, as YAML; unbound, true for a role without a binding.
*/}}
{{- define "capelin.role" -}}
{{- $ := .root -}}
{{- $scope := ternary "" "Cluster" (ne .namespace "") -}}
{{- $base := ternary (include "capelin.name" $) (include "capelin.clusterName" $) (ne .namespace "") -}}
{{- $name := printf "%s-%s" $base .suffix -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $scope }}Role
metadata:
  name: {{ $name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "capelin.labels" $ | nindent 4 }}
rules:
  {{- .rules | nindent 2 }}
{{- if not .unbound }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $scope }}RoleBinding
metadata:
  name: {{ $name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "capelin.labels" $ | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $scope }}Role
  name: {{ $name }}
subjects:
  {{- include "capelin.subject" $ | nindent 2 }}
{{- end }}
{{- end }}
