{{/* The Service of a server. Takes a dict: root; port, the name of the container's. */}}
{{- define "capelin.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "capelin.metadata" .root | nindent 2 }}
spec:
  selector:
    {{- include "capelin.selector" .root | nindent 4 }}
  ports:
    - name: {{ .port }}
      port: 443
      targetPort: {{ .port }}
{{- end }}

{{/* The serving certificate for that Service, if cert-manager creates it. */}}
{{- define "capelin.certificate" -}}
{{- if .Values.certManager.enabled }}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  {{- include "capelin.metadata" . | nindent 2 }}
spec:
  selfSigned: {}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  {{- include "capelin.metadata" . | nindent 2 }}
spec:
  secretName: {{ include "capelin.certificateSecret" . }}
  dnsNames:
    - {{ include "capelin.name" . }}.{{ .Release.Namespace }}.svc
    - {{ include "capelin.name" . }}.{{ .Release.Namespace }}.svc.cluster.local
  issuerRef:
    kind: Issuer
    name: {{ include "capelin.name" . }}
{{- end }}
{{- end }}

{{- define "capelin.certificateSecret" -}}
{{- .Values.certificateSecret | default (printf "%s-certificate" (include "capelin.name" .)) -}}
{{- end }}

{{- define "capelin.certificateMount" -}}
- name: certificate
  mountPath: /certificates
  readOnly: true
{{- end }}

{{- define "capelin.certificateVolume" -}}
- name: certificate
  secret:
    secretName: {{ include "capelin.certificateSecret" . }}
{{- end }}
