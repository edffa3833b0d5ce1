{{/* Spark jobs: one pod with spark-submit, or an application of the Kubeflow Spark operator. */}}

{{/* .root, .job, .lake, .room: characters for the release's part -> a name that is unique for the lake. It does not depend on the
number of lakes: if a second lake changed it, a stream would run twice while Helm replaces the objects. */}}
{{- define "pcaplake.sparkName" -}}
{{- $base := include "pcaplake.fullname" .root | trunc (.room | int) | trimSuffix "-" -}}
{{ $base }}-{{ .job }}-{{ .lake | sha256sum | trunc 8 }}
{{- end -}}

{{/* .root, .job -> JSON of `spark` for this job: memory, cores and resources in its `pod` override those of `spark` */}}
{{- define "pcaplake.sparkValues" -}}
{{- $sizes := list "resources" "driverMemory" "driverCores" "executor" "scratch" -}}
{{- $own := dict -}}
{{- range $name, $value := (index .root.Values.spark .job).pod -}}
{{- if has $name $sizes -}}{{- $_ := set $own $name (deepCopy $value) -}}{{- end -}}
{{- end -}}
{{- mergeOverwrite (deepCopy .root.Values.spark) $own | toJson -}}
{{- end -}}

{{/* URI of a lake -> JSON of the labels and annotations that identify the lake's pods and Jobs */}}
{{- define "pcaplake.sparkLake" -}}
{{- dict "labels" (dict "pcaplake/lake" (. | sha256sum | trunc 8)) "annotations" (dict "pcaplake/lake" .) | toJson -}}
{{- end -}}

{{/* .root, .job, .lake -> arguments of the job, as YAML */}}
{{- define "pcaplake.sparkArguments" -}}
{{- concat (list .job "--lake" .lake) (index .root.Values.spark .job).args | toYaml -}}
{{- end -}}

{{/* The same after spark-submit: the command in a pod of mode `pod`. */}}
{{- define "pcaplake.sparkCommand" -}}
{{- $spark := include "pcaplake.sparkValues" . | fromJson -}}
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

{{/* Name of the volume for shuffle files. Spark on Kubernetes and the Spark operator recognize it by this prefix. With another name, or with
spark.local.dir, Spark mounts a volume of its own at the same path, and the API server refuses the pod. */}}
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

{{/* .root, .job */}}
{{- define "pcaplake.sparkVolumes" -}}
volumes:
  {{- include "pcaplake.settingsVolume" (dict "root" .root "component" .job) | nindent 2 }}
  - name: scratch
    emptyDir: {sizeLimit: 1Gi}
  - name: {{ include "pcaplake.sparkWork" .root }}
    emptyDir: {sizeLimit: {{ (include "pcaplake.sparkValues" . | fromJson).scratch }}}
  {{- with .root.Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* .root, .job, .lake: "" omits the arguments and labels of a lake, .restart -> pod template of mode `pod` */}}
{{- define "pcaplake.sparkPod" -}}
{{- $root := .root -}}
{{- $spark := include "pcaplake.sparkValues" . | fromJson -}}
{{- $about := dict "root" $root "component" .job "role" "spark" -}}
{{- $own := dict -}}
{{- with .lake -}}{{- $own = include "pcaplake.sparkLake" . | fromJson -}}{{- end -}}
metadata:
  {{- include "pcaplake.podMetadata" (merge (dict) $own $about) | nindent 2 }}
spec:
  {{- include "pcaplake.pod" $about | nindent 2 }}
  restartPolicy: {{ .restart }}
  containers:
    - name: spark
      image: {{ include "pcaplake.image" (dict "root" $root "image" $spark.image) }}
      imagePullPolicy: {{ $spark.image.pullPolicy }}
      workingDir: /scratch
      {{- if .lake }}
      args:
        {{- include "pcaplake.sparkCommand" . | nindent 8 }}
      {{- end }}
      {{- include "pcaplake.environment" (dict "root" $root) | nindent 6 }}
      resources:
        {{- toYaml $spark.resources | nindent 8 }}
      securityContext:
        {{- toYaml $root.Values.securityContext | nindent 8 }}
      {{- include "pcaplake.sparkMounts" $root | nindent 6 }}
  {{- include "pcaplake.sparkVolumes" . | nindent 2 }}
{{- end -}}

{{/* .root, .job, .lake, .always -> spec of a SparkApplication */}}
{{- define "pcaplake.application" -}}
{{- $root := .root -}}
{{- $spark := include "pcaplake.sparkValues" . | fromJson -}}
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
{{ include "pcaplake.sparkVolumes" . }}
{{- end -}}

{{- define "pcaplake.applicationPod" -}}
{{- $root := .root -}}
{{- $place := include "pcaplake.place" (dict "root" $root "component" .job) | fromJson -}}
labels:
  {{- mergeOverwrite (include "pcaplake.labels" (dict "root" $root "component" "spark-application") | fromYaml) $place.podLabels | toYaml | nindent 2 }}
annotations:
  {{- mergeOverwrite (dict) $place.podAnnotations (include "pcaplake.settingsAnnotations" (dict "root" $root "component" .job) | fromJson) | toYaml | nindent 2 }}
serviceAccount: {{ include "pcaplake.serviceAccount" (dict "root" $root "role" "spark") }}
{{ include "pcaplake.environment" (dict "root" $root) }}
{{ include "pcaplake.sparkMounts" $root }}
{{- range $name := list "priorityClassName" "nodeSelector" "tolerations" "affinity" }}
{{- with get $place $name }}
{{ dict $name . | toYaml }}
{{- end }}
{{- end }}
podSecurityContext:
  {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
securityContext:
  {{- toYaml $root.Values.securityContext | nindent 2 }}
{{- end -}}
