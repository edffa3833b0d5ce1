{{/* What the pods have in common. */}}

{{/* .root, .role, .token: whether it may ask the API server; fields of a pod's spec */}}
{{- define "pcaplake.pod" -}}
serviceAccountName: {{ include "pcaplake.serviceAccount" . }}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- end -}}

{{/* .root, .component, .place: values with nodeSelector, tolerations, affinity, topologySpreadConstraints */}}
{{- define "pcaplake.placement" -}}
{{- $root := .root -}}
{{- $component := .component -}}
{{- with .place.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .place.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .place.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .place.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $mine := dict "matchLabels" (include "pcaplake.selector" (dict "root" $root "component" $component) | fromYaml) }}
  - {{- merge (dict) . (dict "labelSelector" $mine) | toYaml | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Environment of every container; .root, .threads: true where the decoder runs, with .resources, .names: true for a
pod that must know its own name, .costless: true for one without messages, whose deletion cost is nobody's. What extraEnv names is left out: its entry is the one, since the API server takes no
name twice. */}}
{{- define "pcaplake.environment" -}}
{{- $given := list }}
{{- range .root.Values.extraEnv }}{{ $given = append $given .name }}{{ end -}}
env:
  - {name: PCAPLAKE_CONFIG, value: /etc/pcaplake/fleet.yaml}
  {{- if and .root.Values.settings.region (not (has "AWS_REGION" $given)) }}
  - {name: AWS_REGION, value: {{ .root.Values.settings.region | quote }}}
  {{- end }}
  {{- if and .threads (kindIs "invalid" .root.Values.settings.threads) (not (has "PCAPLAKE_THREADS" $given)) }}
  {{- $of := "" }}
  {{- if dig "limits" "cpu" "" .resources }}{{ $of = "limits.cpu" }}
  {{- else if dig "requests" "cpu" "" .resources }}{{ $of = "requests.cpu" }}{{ end }}
  {{- with $of }}
  - name: PCAPLAKE_THREADS
    valueFrom:
      resourceFieldRef: {containerName: pcaplake, resource: {{ . }}, divisor: "1"}
  {{- end }}
  {{- end }}
  {{- if and .costless .root.Values.settings.deletion_cost }}
  - {name: PCAPLAKE_DELETION_COST, value: "false"}
  {{- end }}
  {{- if .names }}
  {{- range $name, $path := dict "POD_NAME" "metadata.name" "POD_NAMESPACE" "metadata.namespace" }}
  {{- if not (has $name $given) }}
  - name: {{ $name }}
    valueFrom: {fieldRef: {fieldPath: {{ $path }}}}
  {{- end }}
  {{- end }}
  {{- end }}
  {{- with .root.Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .root.Values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "pcaplake.mounts" -}}
volumeMounts:
  - {name: settings, mountPath: /etc/pcaplake, readOnly: true}
  - {name: scratch, mountPath: /tmp}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "pcaplake.settingsVolume" -}}
- name: settings
  configMap:
    name: {{ include "pcaplake.fullname" . }}
    items:
      - {key: fleet.yaml, path: fleet.yaml}
      {{- if .Values.routes }}
      - {key: routes.yaml, path: routes.yaml}
      {{- end }}
      {{- range $name, $_ := .Values.profiles }}
      - {key: profile-{{ $name }}.yaml, path: profiles/{{ $name }}.yaml}
      {{- end }}
{{- end -}}

{{- define "pcaplake.volumes" -}}
volumes:
  {{- include "pcaplake.settingsVolume" . | nindent 2 }}
  - name: scratch
    emptyDir: {medium: Memory, sizeLimit: {{ .Values.scratch }}}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The pod template of `pcaplake run`; .root, .component, .does: the role, .of: values */}}
{{- define "pcaplake.service" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "pcaplake.labels" . | nindent 4 }}
    {{- with .of.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/settings: {{ include "pcaplake.checksum" $root }}
    {{- with .of.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- $cost := and ($root.Values.settings.deletion_cost | default false) (eq .component "worker") }}
  {{- include "pcaplake.pod" (dict "root" $root "role" .component "token" $cost) | nindent 2 }}
  terminationGracePeriodSeconds: {{ add (include "pcaplake.seconds" ($root.Values.settings.drain_timeout | default 60) | int64) $root.Values.worker.graceSeconds }}
  {{- with include "pcaplake.priorityClass" (dict "root" $root "own" .of.priorityClassName) }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with include "pcaplake.placement" (dict "root" $root "component" .component "place" .of) | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: pcaplake
      image: {{ include "pcaplake.image" (dict "root" $root "image" $root.Values.image) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: [pcaplake, run, --role, {{ .does }}]
      {{- include "pcaplake.environment" (dict "root" $root "threads" true "resources" .of.resources "names" $cost "costless" (eq .component "committer")) | nindent 6 }}
      ports:
        - {name: http, containerPort: {{ $root.Values.settings.http_port | int64 }}}
      startupProbe:
        httpGet: {path: /healthz, port: http}
        {{- toYaml $root.Values.probes.startup | nindent 8 }}
      livenessProbe:
        httpGet: {path: /healthz, port: http}
        {{- toYaml $root.Values.probes.liveness | nindent 8 }}
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        {{- toYaml $root.Values.probes.readiness | nindent 8 }}
      resources:
        {{- toYaml .of.resources | nindent 8 }}
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      {{- include "pcaplake.mounts" $root | nindent 6 }}
  {{- include "pcaplake.volumes" $root | nindent 2 }}
{{- end -}}

{{/* .root, .of: values with schedule */}}
{{- define "pcaplake.schedule" -}}
schedule: {{ .of.schedule | quote }}
{{- with .root.Values.schedule.timeZone }}
timeZone: {{ . }}
{{- end }}
concurrencyPolicy: Forbid
startingDeadlineSeconds: {{ .root.Values.schedule.startingDeadlineSeconds | int64 }}
successfulJobsHistoryLimit: {{ .root.Values.schedule.successfulJobsHistoryLimit }}
failedJobsHistoryLimit: {{ .root.Values.schedule.failedJobsHistoryLimit }}
{{- end -}}

{{/* .root, .component, .lake if it is about one: of a Job, whoever makes it, so that both kinds are found by the same labels */}}
{{- define "pcaplake.jobMetadata" -}}
labels:
  {{- include "pcaplake.labels" . | nindent 2 }}
  {{- with .lake }}
  pcaplake/lake: {{ . | sha256sum | trunc 8 | quote }}
  {{- end }}
{{- end -}}

{{- define "pcaplake.reconcilePod" -}}
{{- $of := .Values.reconcile -}}
metadata:
  labels:
    {{- include "pcaplake.labels" (dict "root" . "component" "reconcile") | nindent 4 }}
spec:
  {{- include "pcaplake.pod" (dict "root" . "role" "operator") | nindent 2 }}
  restartPolicy: Never
  containers:
    - name: pcaplake
      image: {{ include "pcaplake.image" (dict "root" . "image" .Values.image) }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        {{- concat (list "pcaplake" "reconcile") $of.args | toYaml | nindent 8 }}
      {{- include "pcaplake.environment" (dict "root" .) | nindent 6 }}
      resources:
        {{- toYaml $of.resources | nindent 8 }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      {{- include "pcaplake.mounts" . | nindent 6 }}
  {{- include "pcaplake.volumes" . | nindent 2 }}
{{- end -}}
