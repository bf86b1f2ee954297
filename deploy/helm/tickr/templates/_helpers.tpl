{{- define "tickr.name" -}}
{{- if contains "tickr" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-tickr{{ end }}
{{- end }}

{{- define "tickr.selector" -}}
app.kubernetes.io/name: tickr
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tickr.labels" -}}
{{ include "tickr.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tickr.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* What every pod of tickr has around its containers. */}}
{{- define "tickr.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "tickr.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* One group of processes. Takes root, name, queues, workers, replicas (null: left to KEDA) and resources. */}}
{{- define "tickr.deployment" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "tickr.name" $root }}-{{ .name }}
  labels:
    {{- include "tickr.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .name }}
spec:
  {{- if not (kindIs "invalid" .replicas) }}
  replicas: {{ .replicas }}
  {{- end }}
  strategy:
    # A runner that starts costs connections and nothing else, so the old one stays until the new one is ready.
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  selector:
    matchLabels:
      {{- include "tickr.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .name }}
  template:
    metadata:
      labels:
        {{- include "tickr.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .name }}
      annotations:
        checksum/config: {{ $values.config | sha256sum }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "tickr.pod" $root | nindent 6 }}
      terminationGracePeriodSeconds: {{ add 35 (max (int $values.shutdownGraceSeconds) (int $values.shutdownNoticeSeconds)) }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "tickr.selector" $root | nindent 14 }}
              app.kubernetes.io/component: {{ .name }}
      containers:
        - name: tickr
          image: {{ include "tickr.image" $root }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args: [serve]
          {{- include "tickr.containerSecurity" $root | nindent 10 }}
          env:
            - {name: TICKR_HTTP_ADDR, value: "0.0.0.0:7070"}
            - {name: TICKR_LOG_FORMAT, value: json}
            - {name: TICKR_CONFIG, value: /etc/tickr/tickr.toml}
            - {name: TICKR_QUEUES, value: {{ .queues | quote }}}
            - {name: TICKR_WORKERS, value: {{ .workers | quote }}}
            - {name: TICKR_SHUTDOWN_GRACE, value: {{ printf "%ds" (int $values.shutdownGraceSeconds) | quote }}}
            # In place of a preStop hook: readiness is red for this long before the listener closes.
            - {name: TICKR_SHUTDOWN_NOTICE, value: {{ printf "%ds" (int $values.shutdownNoticeSeconds) | quote }}}
            {{- range $name, $value := $values.env }}
            - {name: {{ $name }}, value: {{ $value | quote }}}
            {{- end }}
          envFrom:
            - secretRef: {name: {{ $values.secret }}}
          ports:
            - {name: http, containerPort: 7070}
          # Probes need no API key. /livez answers also while the tables are migrated, and when MySQL goes out later. A
          # process that starts without MySQL waits 10 s for it, ends, and is started again.
          startupProbe:
            httpGet: {path: /livez, port: http}
            periodSeconds: 2
            failureThreshold: 30
          livenessProbe:
            httpGet: {path: /livez, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 5
            timeoutSeconds: 5
            failureThreshold: 2
          resources: {{ toJson .resources }}
          volumeMounts:
            - {name: config, mountPath: /etc/tickr, readOnly: true}
            - {name: data, mountPath: /var/lib/tickr}
      volumes:
        - name: config
          configMap: {name: {{ include "tickr.name" $root }}}
        # Report files. Reports of up to share_up_to are in MySQL as well, so a pod may go with its own.
        - name: data
          emptyDir: {}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "tickr.name" $root }}-{{ .name }}
  labels:
    {{- include "tickr.labels" $root | nindent 4 }}
spec:
  maxUnavailable: {{ $values.disruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "tickr.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .name }}
{{- end }}
