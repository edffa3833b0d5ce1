{{/* Spark's jobs: one pod with spark-submit, or an application of the Kubeflow operator. */}}

{{/* .root, .job, .lake, .room: letters for the release's part -> a name that no other lake's has. It is the lake's own,
however many there are: were it another one with a second lake, a stream would run twice while Helm changes them. */}}
{{- define "pcaplake.sparkName" -}}
{{- $base := include "pcaplake.fullname" .root | trunc (.room | int) | trimSuffix "-" -}}
{{ $base }}-{{ .job }}-{{ .lake | sha256sum | trunc 8 }}
{{- end -}}

{{/* .root, .job, .lake: what the job is told, as YAML */}}
{{- define "pcaplake.sparkArguments" -}}
{{- concat (list .job "--lake" .lake) (index .root.Values.spark .job).args | toYaml -}}
{{- end -}}

{{/* The same with spark-submit before it: what a pod that is Spark runs. */}}
{{- define "pcaplake.sparkCommand" -}}
{{- $spark := .root.Values.spark -}}
- spark-submit
- --master=local[*]
- --driver-memory={{ $spark.driverMemory }}
- --conf=spark.local.dir=/scratch
- --conf=spark.ui.enabled=false
- --conf=spark.driver.bindAddress=127.0.0.1
- --conf=spark.driver.host=127.0.0.1
{{- range $name, $value := $spark.conf }}
- {{ printf "--conf=%s=%v" $name $value | quote }}
{{- end }}
- /app/job.py
{{ include "pcaplake.sparkArguments" . }}
{{- end -}}

{{/* Volume of the shuffles. Spark on Kubernetes and its operator know it by this prefix; by another name, or with
spark.local.dir, Spark mounts a volume of its own at the same place, and the API server refuses the pod. */}}
{{- define "pcaplake.sparkWork" -}}
{{ ternary "spark-local-dir-1" "work" (eq .Values.spark.mode "kubeflow") }}
{{- end -}}

{{- define "pcaplake.sparkMounts" -}}
volumeMounts:
  - {name: settings, mountPath: /etc/pcaplake, readOnly: true}
  - {name: scratch, mountPath: /tmp}
  - {name: {{ include "pcaplake.sparkWork" . }}, mountPath: /scratch}
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "pcaplake.sparkVolumes" -}}
volumes:
  {{- include "pcaplake.settingsVolume" . | nindent 2 }}
  - name: scratch
    emptyDir: {sizeLimit: 1Gi}
  - name: {{ include "pcaplake.sparkWork" . }}
    emptyDir: {sizeLimit: {{ .Values.spark.scratch }}}
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* .root, .job, .lake, .restart: the template of a pod that is Spark with all it needs */}}
{{- define "pcaplake.sparkPod" -}}
{{- $root := .root -}}
{{- $spark := .root.Values.spark -}}
metadata:
  labels:
    {{- include "pcaplake.labels" (dict "root" $root "component" .job) | nindent 4 }}
    pcaplake/lake: {{ .lake | sha256sum | trunc 8 | quote }}
  annotations:
    pcaplake/lake: {{ .lake | quote }}
    checksum/settings: {{ include "pcaplake.checksum" $root }}
spec:
  {{- include "pcaplake.pod" (dict "root" $root "role" "spark") | nindent 2 }}
  restartPolicy: {{ .restart }}
  {{- with include "pcaplake.placement" (dict "root" $root "component" .job "place" $spark) | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  containers:
    - name: spark
      image: {{ include "pcaplake.image" (dict "root" $root "image" $spark.image) }}
      imagePullPolicy: {{ $spark.image.pullPolicy }}
      workingDir: /scratch
      args:
        {{- include "pcaplake.sparkCommand" . | nindent 8 }}
      {{- include "pcaplake.environment" (dict "root" $root) | nindent 6 }}
      resources:
        {{- toYaml $spark.resources | nindent 8 }}
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      {{- include "pcaplake.sparkMounts" $root | nindent 6 }}
  {{- include "pcaplake.sparkVolumes" $root | nindent 2 }}
{{- end -}}

{{/* .root, .job, .lake, .always: the spec of a SparkApplication */}}
{{- define "pcaplake.application" -}}
{{- $root := .root -}}
{{- $spark := .root.Values.spark -}}
type: Python
pythonVersion: "3"
mode: cluster
sparkVersion: "4.2.0"
image: {{ include "pcaplake.image" (dict "root" $root "image" $spark.image) }}
imagePullPolicy: {{ $spark.image.pullPolicy }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {{ .name }}
  {{- end }}
{{- end }}
mainApplicationFile: local:///app/job.py
arguments:
  {{- include "pcaplake.sparkArguments" . | nindent 2 }}
{{- with $spark.conf }}
sparkConf:
  {{- range $name, $value := . }}
  {{ $name }}: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
restartPolicy:
  {{- if .always }}
  type: Always
  {{- else }}
  type: OnFailure
  onFailureRetries: {{ $root.Values.schedule.backoffLimit }}
  onFailureRetryInterval: 60
  {{- end }}
driver:
  cores: {{ $spark.driverCores }}
  memory: {{ $spark.driverMemory }}
  {{- include "pcaplake.applicationPod" . | nindent 2 }}
executor:
  instances: {{ $spark.executor.instances }}
  cores: {{ $spark.executor.cores }}
  memory: {{ $spark.executor.memory }}
  memoryOverhead: {{ $spark.executor.memoryOverhead }}
  {{- include "pcaplake.applicationPod" . | nindent 2 }}
{{ include "pcaplake.sparkVolumes" $root }}
{{- end -}}

{{- define "pcaplake.applicationPod" -}}
{{- $root := .root -}}
labels:
  {{- include "pcaplake.labels" (dict "root" $root "component" "spark-application") | nindent 2 }}
serviceAccount: {{ include "pcaplake.serviceAccount" (dict "root" $root "role" "spark") }}
{{ include "pcaplake.environment" (dict "root" $root) }}
{{ include "pcaplake.sparkMounts" $root }}
{{- with $root.Values.spark.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.spark.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
podSecurityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
securityContext:
  {{- toYaml $root.Values.securityContext | nindent 2 }}
{{- end -}}
