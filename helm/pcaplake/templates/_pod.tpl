{{/* Templates that all pods share. */}}

{{/* .root, .component -> JSON of labels, annotations and placement of the component's pods: `pods`, merged with the component's own
values. Maps are merged key by key, tolerations are appended, other values replace those of `pods`. */}}
{{- define "pcaplake.place" -}}
{{- $values := .root.Values -}}
{{- $levels := list $values.pods -}}
{{- if has .component (list "worker" "committer") -}}
{{- if $values.priorityClass.create -}}
{{- $levels = append $levels (dict "priorityClassName" ($values.priorityClass.name | default (include "pcaplake.fullname" .root))) -}}
{{- end -}}
{{- end -}}
{{- if has .component (list "compact" "vacuum" "quality" "signals") -}}
{{- $levels = append $levels $values.spark -}}
{{- $levels = append $levels (index $values.spark .component).pod -}}
{{- else -}}
{{- $levels = append $levels (index $values (eq .component "doctor" | ternary "tests" .component)) -}}
{{- end -}}
{{- $place := dict "podLabels" dict "podAnnotations" dict "nodeSelector" dict "tolerations" list -}}
{{- range $level := $levels -}}
{{- range $name := list "podLabels" "podAnnotations" "nodeSelector" -}}
{{- range $key, $value := index $level $name -}}{{- $_ := set (get $place $name) $key $value -}}{{- end -}}
{{- end -}}
{{- with $level.tolerations -}}{{- $_ := set $place "tolerations" (concat $place.tolerations . | uniq) -}}{{- end -}}
{{- range $name := list "affinity" "topologySpreadConstraints" "priorityClassName" -}}
{{- with get $level $name -}}{{- $_ := set $place $name . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $place | toJson -}}
{{- end -}}

{{/* .root, .component, .files: see pcaplake.files, .labels, .annotations: additional dicts, optional -> metadata of a pod, without
its name */}}
{{- define "pcaplake.podMetadata" -}}
{{- $place := include "pcaplake.place" . | fromJson -}}
labels:
  {{- mergeOverwrite (include "pcaplake.labels" . | fromYaml) (.labels | default dict) $place.podLabels | toYaml | nindent 2 }}
annotations:
  {{- mergeOverwrite (dict) $place.podAnnotations (include "pcaplake.settingsAnnotations" . | fromJson) (.annotations | default dict) | toYaml | nindent 2 }}
{{- end -}}

{{/* .root, .component, .role: of its ServiceAccount, .token: true to mount a token for the API server -> fields of a pod's spec */}}
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
{{- $root := .root -}}
{{- $component := .component -}}
{{- $place := include "pcaplake.place" . | fromJson }}
{{- range $name := list "priorityClassName" "nodeSelector" "tolerations" "affinity" }}
{{- with get $place $name }}
{{ dict $name . | toYaml }}
{{- end }}
{{- end }}
{{- with $place.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $mine := dict "matchLabels" (include "pcaplake.selector" (dict "root" $root "component" $component) | fromYaml) }}
  - {{- merge (dict) . (dict "labelSelector" $mine) | toYaml | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Environment of a container. .root, .threads: true if it runs the decoder, with .resources; .names: true if it needs its pod's name;
.costless: true if it handles no messages and therefore writes no deletion cost. Variables that extraEnv sets are left out, because the
API server refuses duplicate names. */}}
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

{{/* .root, .component, .files */}}
{{- define "pcaplake.volumes" -}}
volumes:
  {{- include "pcaplake.settingsVolume" . | nindent 2 }}
  - name: scratch
    emptyDir: {medium: Memory, sizeLimit: {{ .root.Values.scratch }}}
  {{- with .root.Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* .root, .component, .does: the role, .of: values -> the pod template of `pcaplake run` */}}
{{- define "pcaplake.service" -}}
{{- $root := .root -}}
metadata:
  {{- include "pcaplake.podMetadata" (dict "root" $root "component" .component) | nindent 2 }}
spec:
  {{- $cost := and ($root.Values.settings.deletion_cost | default false) (eq .component "worker") }}
  {{- include "pcaplake.pod" (dict "root" $root "component" .component "role" .component "token" $cost) | nindent 2 }}
  terminationGracePeriodSeconds: {{ add (include "pcaplake.seconds" ($root.Values.settings.drain_timeout | default 60) | int64) $root.Values.worker.graceSeconds }}
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
  {{- include "pcaplake.volumes" (dict "root" $root "component" .component) | nindent 2 }}
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

{{/* .root, .component, .lake (optional) -> metadata of a Job. Jobs of CronJobs and of the operator have the same labels. */}}
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
  {{- include "pcaplake.podMetadata" (dict "root" . "component" "reconcile") | nindent 2 }}
spec:
  {{- include "pcaplake.pod" (dict "root" . "component" "reconcile" "role" "operator") | nindent 2 }}
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
  {{- include "pcaplake.volumes" (dict "root" . "component" "reconcile") | nindent 2 }}
{{- end -}}
