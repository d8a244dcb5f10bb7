{{/*
The objects for Prometheus and Grafana. Takes a dict: root, port, the name of the container's, scheme, the
lines of the endpoint that say how to call it, and panels, a list of a title and a query.
*/}}
{{- define "capelin.metrics" -}}
{{- $port := .port -}}
{{- $scheme := .scheme -}}
{{- $panels := .panels -}}
{{- with .root -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "capelin.name" . }}-metrics
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "capelin.labels" . | nindent 4 }}
spec:
  selector:
    {{- include "capelin.selector" . | nindent 4 }}
  ports:
    - name: metrics
      port: 8443
      targetPort: {{ $port }}
{{- if .Values.metrics.serviceMonitor.enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ include "capelin.name" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "capelin.labels" . | nindent 4 }}
    {{- with .Values.metrics.serviceMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "capelin.selector" . | nindent 6 }}
  endpoints:
    - port: metrics
      interval: {{ .Values.metrics.serviceMonitor.interval }}
      {{- $scheme | nindent 6 }}
{{- end }}
{{- if .Values.metrics.prometheusRule.enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {{ include "capelin.name" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "capelin.labels" . | nindent 4 }}
    {{- with .Values.metrics.prometheusRule.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  groups:
    - name: {{ include "capelin.clusterName" . }}
      rules:
        {{- .Files.Get "files/alerts.yaml" | replace "JOB" (include "capelin.job" .) | nindent 8 }}
{{- end }}
{{- if .Values.metrics.dashboard.enabled }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "capelin.name" . }}-dashboard
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "capelin.labels" . | nindent 4 }}
    {{- toYaml .Values.metrics.dashboard.labels | nindent 4 }}
data:
  {{ include "capelin.name" . }}.json: |
    {{- include "capelin.dashboard" (dict "root" . "panels" $panels) | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{/* The labels of the series that Prometheus scrapes from this release. */}}
{{- define "capelin.job" -}}
{{- printf `namespace="%s",service="%s-metrics"` .Release.Namespace (include "capelin.name" .) -}}
{{- end }}

{{- define "capelin.dashboard" -}}
{{- $job := include "capelin.job" .root -}}
{{- $made := list -}}
{{- range $index, $panel := .panels -}}
{{- $made = append $made (dict
  "id" (add1 $index) "type" "timeseries" "title" $panel.title
  "gridPos" (dict "h" 8 "w" 12 "x" (mul 12 (mod $index 2)) "y" (mul 8 (div $index 2)))
  "targets" (list (dict "refId" "A" "expr" ($panel.expr | replace "JOB" $job)))) -}}
{{- end -}}
{{- dict
  "title" (include "capelin.name" .root) "uid" (include "capelin.clusterName" .root | trunc 40)
  "schemaVersion" 39 "tags" (list "cluster-api" (index .root.Chart.Annotations "app.kubernetes.io/part-of") | compact)
  "time" (dict "from" "now-1h" "to" "now") "panels" $made | toPrettyJson -}}
{{- end }}
