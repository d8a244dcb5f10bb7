{{/* Everything that a server of `capelin.runtime` needs. */}}
{{- define "capelin.extension" -}}
{{ include "capelin.serviceAccount" . }}
{{- with .Files.Get "files/rules.yaml" | trim }}
---
{{ include "capelin.role" (dict "root" $ "suffix" "manager" "namespace" "" "rules" (tpl . $)) }}
{{- end }}
{{- range $name, $bound := .Values.permissions }}
{{- with $.Files.Get (printf "files/%s-rules.yaml" $name) | trim }}
---
{{ include "capelin.role" (dict "root" $ "suffix" $name "namespace" "" "rules" . "unbound" (not $bound)) }}
{{- end }}
{{- end }}
{{- with .Files.Get "files/lease-rules.yaml" | trim }}
---
{{ include "capelin.role" (dict "root" $ "suffix" "leader-election" "namespace" $.Release.Namespace "rules" .) }}
{{- end }}
---
{{ include "capelin.service" (dict "root" . "port" "hooks") }}
{{- if .Values.metrics.enabled }}
---
{{ include "capelin.metrics" (dict "root" . "port" "health" "scheme" (include "capelin.extensionScheme" .) "panels" (include "capelin.extensionPanels" . | fromYamlArray)) }}
{{- end }}
---
{{ include "capelin.deployment" (dict "root" . "grace" 45 "strategy" "rollingUpdate:\n  maxSurge: 1\n  maxUnavailable: 0" "args" (include "capelin.extensionArgs" .) "env" (include "capelin.extensionEnv" .) "ports" (include "capelin.extensionPorts" .) "mounts" (include "capelin.extensionMounts" .) "volumes" (include "capelin.extensionVolumes" .)) }}
---
{{ include "capelin.disruptionBudget" . }}
---
{{ include "capelin.networkPolicy" (dict "root" . "ports" (list "hooks") "metrics" "health") }}
{{- include "capelin.certificate" . }}
{{- if .Values.extensionConfig.enabled }}
---
{{ include "capelin.extensionConfig" (dict "root" .) }}
---
{{/*
Cluster API calls an extension for as long as its ExtensionConfig exists, and Helm would remove that
last. A hook with the same name removes it before anything else.
*/}}
{{ include "capelin.extensionConfig" (dict "root" . "hook" true) }}
{{- end }}
{{- end }}

{{- define "capelin.extensionArgs" -}}
- --port=9443
- --probes-port=9440
- --cert-dir=/certificates
- --client-ca=/client-ca/ca.crt
{{- if and .Values.metrics.enabled .Values.metrics.tokenSecret }}
- --metrics-token-file=/metrics-token/token
{{- end }}
- --log-level={{ .Values.log.level }}
{{- with .Values.args }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "capelin.extensionEnv" -}}
- name: CAPELIN_EXTENSION_CONFIG
  value: {{ include "capelin.extensionConfigName" . }}
{{- end }}

{{- define "capelin.extensionPorts" -}}
- name: hooks
  containerPort: 9443
- name: health
  containerPort: 9440
{{- end }}

{{- define "capelin.extensionScheme" -}}
scheme: http
{{- with .Values.metrics.tokenSecret }}
authorization:
  credentials:
    name: {{ . }}
    key: token
{{- end }}
{{- end }}

{{- define "capelin.extensionPanels" -}}
- title: Calls per second
  expr: sum by (hook, outcome) (rate(capelin_runtime_requests_total{JOB}[5m]))
- title: Time of a call, 99th percentile
  expr: histogram_quantile(0.99, sum by (hook, le) (rate(capelin_runtime_request_duration_seconds_bucket{JOB}[5m])))
{{- end }}

{{- define "capelin.extensionMounts" -}}
{{ include "capelin.certificateMount" . }}
- name: client-ca
  mountPath: /client-ca
  readOnly: true
{{- if and .Values.metrics.enabled .Values.metrics.tokenSecret }}
- name: metrics-token
  mountPath: /metrics-token
  readOnly: true
{{- end }}
{{- end }}

{{- define "capelin.extensionVolumes" -}}
{{ include "capelin.certificateVolume" . }}
- name: client-ca
  configMap:
    name: {{ .Values.clientCA.configMap }}
{{- if and .Values.metrics.enabled .Values.metrics.tokenSecret }}
- name: metrics-token
  secret:
    secretName: {{ .Values.metrics.tokenSecret }}
{{- end }}
{{- end }}

{{- define "capelin.extensionConfigName" -}}
{{- .Values.extensionConfig.name | default (include "capelin.name" .) -}}
{{- end }}

{{- define "capelin.extensionConfig" -}}
{{- $hook := .hook -}}
{{- with .root -}}
apiVersion: runtime.cluster.x-k8s.io/v1beta2
kind: ExtensionConfig
metadata:
  name: {{ include "capelin.extensionConfigName" . }}
  labels:
    {{- include "capelin.labels" . | nindent 4 }}
  annotations:
    runtime.cluster.x-k8s.io/inject-ca-from-secret: {{ .Release.Namespace }}/{{ include "capelin.certificateSecret" . }}
    {{- if $hook }}
    helm.sh/hook: pre-delete
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
    {{- end }}
spec:
  clientConfig:
    service:
      name: {{ include "capelin.name" . }}
      namespace: {{ .Release.Namespace }}
      port: 443
  {{- with .Values.extensionConfig.namespaceSelector }}
  namespaceSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.extensionConfig.settings }}
  settings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
