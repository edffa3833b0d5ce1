{{/* The operator's files (docs/operator.md): JSON of path -> text. All lakes share one template per kind of job; values that differ
by lake are in the plan, so that the files stay small with many lakes. */}}
{{- define "pcaplake.plan" -}}
{{- $root := . -}}
{{- $files := dict -}}
{{- $jobs := dict -}}
{{- if include "pcaplake.reconciles" . -}}
{{- $_ := set $files "job-reconcile.yaml" (include "pcaplake.jobTemplate" (dict "root" . "component" "reconcile" "of" .Values.reconcile "pod" (include "pcaplake.reconcilePod" .))) -}}
{{- $_ := set $jobs "reconcile" (dict "schedule" .Values.reconcile.schedule "template" "job-reconcile.yaml") -}}
{{- end -}}
{{- range $job := list "compact" "vacuum" "quality" "signals" -}}
{{- $of := index $root.Values.spark $job -}}
{{- if and $of.enabled $of.schedule -}}
{{- $file := printf "job-%s.yaml" $job -}}
{{- $pod := include "pcaplake.sparkPod" (dict "root" $root "job" $job "lake" "" "restart" "Never") -}}
{{- $_ := set $files $file (include "pcaplake.jobTemplate" (dict "root" $root "component" $job "of" $of "pod" $pod)) -}}
{{- range $lake := include "pcaplake.lakes" $root | fromJsonArray -}}
{{- $about := dict "root" $root "job" $job "lake" $lake "room" 34 -}}
{{- $name := include "pcaplake.sparkName" $about | trimPrefix (printf "%s-" (include "pcaplake.fullname" $root)) -}}
{{- $own := dict "schedule" $of.schedule "template" $file "args" (include "pcaplake.sparkCommand" $about | fromYamlArray) -}}
{{- $_ := set $jobs $name (merge $own (include "pcaplake.sparkLake" $lake | fromJson)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $schedule := .Values.schedule -}}
{{- $plan := dict "timezone" ($schedule.timeZone | default "Etc/UTC") "late" ($schedule.startingDeadlineSeconds | int64) "jobs" $jobs -}}
{{- $_ := set $plan "keep_succeeded" ($schedule.successfulJobsHistoryLimit | int64) -}}
{{- $_ := set $plan "keep_failed" ($schedule.failedJobsHistoryLimit | int64) -}}
{{- set $files "jobs.yaml" (toYaml $plan) | toJson -}}
{{- end -}}

{{/* .root, .component, .of: values, .pod: pod template as text -> a Job, as text */}}
{{- define "pcaplake.jobTemplate" -}}
{{- $spec := dict "backoffLimit" .root.Values.schedule.backoffLimit "activeDeadlineSeconds" (.of.activeDeadlineSeconds | int64) -}}
{{- $_ := set $spec "template" (.pod | fromYaml) -}}
{{- dict "metadata" (include "pcaplake.jobMetadata" (dict "root" .root "component" .component) | fromYaml) "spec" $spec | toYaml -}}
{{- end -}}
