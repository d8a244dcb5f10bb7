{{/*
The Deployment. Takes a dict: root, args, env, ports, grace, and optionally mounts and volumes, as
YAML; readiness, another path of the probe; and drain, the seconds in which a terminating pod still
serves.
*/}}
{{- define "capelin.deployment" -}}
{{- $ := .root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "capelin.metadata" $ | nindent 2 }}
spec:
  replicas: {{ $.Values.replicas | int64 }}
  selector:
    matchLabels:
      {{- include "capelin.selector" $ | nindent 6 }}
  {{- with .strategy }}
  strategy:
    {{- . | nindent 4 }}
  {{- end }}
  template:
    metadata:
      {{- with $.Values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      labels:
        {{- include "capelin.labels" $ | nindent 8 }}
        {{- with $.Values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "capelin.name" $ }}
      terminationGracePeriodSeconds: {{ .grace }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      {{- with $.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $.Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $.Values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $.Values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $.Values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "capelin.selector" $ | nindent 14 }}
      containers:
        - name: manager
          image: {{ include "capelin.image" $ }}
          imagePullPolicy: {{ $.Values.image.pullPolicy }}
          args:
            {{- .args | nindent 12 }}
            {{- with $.Values.extraArgs }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- if or .env $.Values.extraEnv }}
          env:
            {{- with .env }}
            {{- . | nindent 12 }}
            {{- end }}
            {{- with $.Values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- end }}
          ports:
            {{- .ports | nindent 12 }}
          livenessProbe:
            httpGet:
              path: /healthz
              port: health
            initialDelaySeconds: 15
            periodSeconds: 20
            timeoutSeconds: 5
          readinessProbe:
            httpGet:
              path: {{ .readiness | default "/readyz" }}
              port: health
            periodSeconds: 5
            timeoutSeconds: 5
          {{- with .drain }}
          lifecycle:
            preStop:
              sleep:
                seconds: {{ . }}
          {{- end }}
          resources:
            {{- toYaml $.Values.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop:
                - ALL
          volumeMounts:
            - name: home
              mountPath: /home/nonroot
            - name: tmp
              mountPath: /tmp
            {{- with .mounts }}
            {{- . | nindent 12 }}
            {{- end }}
            {{- with $.Values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: home
          emptyDir: {}
        - name: tmp
          emptyDir: {}
        {{- with .volumes }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with $.Values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end }}

{{- define "capelin.disruptionBudget" -}}
{{- if .Values.podDisruptionBudget.enabled -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "capelin.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .Values.podDisruptionBudget.maxUnavailable | int64 }}
  selector:
    matchLabels:
      {{- include "capelin.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{/*
Takes a dict: root; ports, the names of those that others may call; and metrics, the name of a port
that only the peers in networkPolicy.metricsFrom may call.
*/}}
{{- define "capelin.networkPolicy" -}}
{{- $ := .root -}}
{{- if $.Values.networkPolicy.enabled -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "capelin.metadata" $ | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "capelin.selector" $ | nindent 6 }}
  policyTypes:
    - Ingress
    {{- if $.Values.networkPolicy.egress }}
    - Egress
    {{- end }}
  ingress:
    - ports:
        {{- range .ports }}
        - port: {{ . }}
          protocol: TCP
        {{- end }}
      {{- with $.Values.networkPolicy.from }}
      from:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- if and .metrics $.Values.metrics.enabled $.Values.networkPolicy.metricsFrom }}
    - ports:
        - port: {{ .metrics }}
          protocol: TCP
      from:
        {{- toYaml $.Values.networkPolicy.metricsFrom | nindent 8 }}
    {{- end }}
  {{- with $.Values.networkPolicy.egress }}
  egress:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
