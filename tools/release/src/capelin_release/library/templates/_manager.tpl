{{/* Everything that a manager of `capelin.controller` needs. */}}
{{- define "capelin.manager" -}}
{{ include "capelin.serviceAccount" . }}
---
{{ include "capelin.role" (dict "root" . "suffix" "manager" "namespace" .Values.watch.namespace "rules" (.Files.Get "files/rules.yaml")) }}
---
{{ include "capelin.role" (dict "root" . "suffix" "leader-election" "namespace" .Release.Namespace "rules" (.Files.Get "files/lease-rules.yaml")) }}
{{- if .Values.metrics.enabled }}
---
{{ include "capelin.role" (dict "root" . "suffix" "metrics" "namespace" "" "rules" (.Files.Get "files/metrics-rules.yaml")) }}
---
{{ include "capelin.metrics" (dict "root" . "port" "metrics" "scheme" (include "capelin.managerScheme" .) "panels" (include "capelin.managerPanels" . | fromYamlArray)) }}
{{- end }}
---
{{ include "capelin.managerDeployment" . }}
---
{{ include "capelin.disruptionBudget" . }}
---
{{ include "capelin.managerNetworkPolicy" . }}
{{- if hasKey .Values "certManager" }}
---
{{ include "capelin.service" (dict "root" . "port" "webhooks") }}
{{- include "capelin.certificate" . }}
{{- end }}
{{- end }}

{{/*
Only charts of managers with webhooks have the value `certManager`. Such a manager is ready when it
serves them, because it may need its own conversions to list its objects.
*/}}
{{- define "capelin.managerDeployment" -}}
{{- $pod := dict "root" . "grace" 30 "args" (include "capelin.managerArgs" .) "env" (include "capelin.managerEnv" .) "ports" (include "capelin.managerPorts" .) -}}
{{- if hasKey .Values "certManager" -}}
{{- $pod = merge $pod (dict "readiness" "/readyz/webhooks" "drain" 5 "mounts" (include "capelin.certificateMount" .) "volumes" (include "capelin.certificateVolume" .)) -}}
{{- end -}}
{{ include "capelin.deployment" $pod }}
{{- end }}

{{- define "capelin.managerNetworkPolicy" -}}
{{- $ports := ternary (list "health" "metrics") (list "health") .Values.metrics.enabled -}}
{{- if hasKey .Values "certManager" -}}
{{- $ports = append $ports "webhooks" -}}
{{- end -}}
{{ include "capelin.networkPolicy" (dict "root" . "ports" $ports) }}
{{- end }}

{{- define "capelin.managerArgs" -}}
- --namespace={{ .Values.watch.namespace }}
- --watch-filter={{ .Values.watch.filter }}
- --leader-elect=true
- --health-address=:9440
- --metrics-address={{ ternary ":8443" "0" .Values.metrics.enabled }}
- --concurrency={{ .Values.concurrency | int64 }}
- --sync-period={{ .Values.syncPeriod }}
- --log-format={{ .Values.log.format }}
{{- if hasKey .Values "certManager" }}
- --webhook-address=:9443
- --cert-dir=/certificates
{{- end }}
{{- with .Values.args }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "capelin.managerEnv" -}}
- name: CAPELIN_VERBOSITY
  value: {{ .Values.log.verbosity | int64 | quote }}
{{- end }}

{{- define "capelin.managerPorts" -}}
- name: health
  containerPort: 9440
{{- if .Values.metrics.enabled }}
- name: metrics
  containerPort: 8443
{{- end }}
{{- if hasKey .Values "certManager" }}
- name: webhooks
  containerPort: 9443
{{- end }}
{{- end }}

{{/* With the certificate that a manager makes for itself at its start. */}}
{{- define "capelin.managerScheme" -}}
scheme: https
bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
tlsConfig:
  insecureSkipVerify: true
{{- end }}

{{- define "capelin.managerPanels" -}}
- title: Reconciles per second
  expr: sum by (controller, result) (rate(controller_runtime_reconcile_total{JOB}[5m]))
- title: Errors per second
  expr: sum by (controller) (rate(controller_runtime_reconcile_errors_total{JOB}[5m]))
- title: Reconcile time, 99th percentile
  expr: histogram_quantile(0.99, sum by (controller, le) (rate(controller_runtime_reconcile_time_seconds_bucket{JOB}[5m])))
- title: Objects that wait
  expr: sum by (name) (workqueue_depth{JOB})
- title: Requests to the API server per second
  expr: sum by (code, method) (rate(rest_client_requests_total{JOB}[5m]))
- title: Holds the lease
  expr: max by (pod) (leader_election_master_status{JOB})
{{- end }}
