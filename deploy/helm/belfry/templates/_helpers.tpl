{{/* The name of all objects: the release's, with the chart's unless the release's has it. */}}
{{- define "belfry.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels that select the pods. They never change, because a StatefulSet's selector may not. */}}
{{- define "belfry.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "belfry.labels" -}}
{{ include "belfry.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "belfry.secret" -}}
{{- .Values.secret.name | default (include "belfry.name" .) -}}
{{- end -}}

{{/* The config file: the settings of the chart, and those of the value config, which may not have the same names. */}}
{{- define "belfry.config" -}}
{{- $config := dict "http" "0.0.0.0:8420" "http-tokens" "/etc/belfry/secret/tokens.yaml" "allow-prefixes" .Values.allowPrefixes -}}
{{- if eq .Values.mode "nats" -}}
{{- $_ := set $config "nats-url" .Values.nats.url -}}
{{- $_ := set $config "replicas" .Values.nats.replicas -}}
{{- if .Values.nats.creds -}}
{{- $_ := set $config "creds" "/etc/belfry/secret/nats.creds" -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := .Values.config -}}
{{- if hasKey $config $name -}}
{{- fail (printf "config.%s is a setting of the chart: use its own value" $name) -}}
{{- end -}}
{{- $_ := set $config $name $value -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The template of the pods, of both modes. */}}
{{- define "belfry.pod" -}}
metadata:
  labels:
    {{- include "belfry.labels" . | nindent 4 }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  # A node needs up to 10 s to stop.
  terminationGracePeriodSeconds: 15
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- if eq .Values.mode "nats" }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "belfry.selector" . | nindent 10 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: belfry
      image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve]
      env:
        - {name: BELFRY_CONFIG, value: /etc/belfry/config/belfry.yaml}
        {{- if eq .Values.mode "nats" }}
        - name: BELFRY_NODE
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- else }}
        # A folder that the node makes, with mode 0700, beside what the file system has.
        - {name: BELFRY_DATA, value: /var/lib/belfry/data}
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - {name: http, containerPort: 8420}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      startupProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 5
        failureThreshold: {{ div .Values.probes.startupSeconds 5 }}
      livenessProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
      resources:
        {{- if .Values.resources }}
        {{- toYaml .Values.resources | nindent 8 }}
        {{- else if eq .Values.mode "nats" }}
        requests: {cpu: 500m, memory: 256Mi}
        limits: {memory: 1Gi}
        {{- else }}
        requests: {cpu: 500m, memory: 1Gi}
        limits: {memory: 4Gi}
        {{- end }}
      volumeMounts:
        {{- if eq .Values.mode "embedded" }}
        - {name: data, mountPath: /var/lib/belfry}
        {{- end }}
        - {name: config, mountPath: /etc/belfry/config, readOnly: true}
        - {name: secret, mountPath: /etc/belfry/secret, readOnly: true}
  volumes:
    - name: config
      configMap: {name: {{ include "belfry.name" . }}}
    - name: secret
      secret: {secretName: {{ include "belfry.secret" . }}, defaultMode: 0440}
{{- end -}}
