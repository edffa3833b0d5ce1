{{/* Names, labels and values that are computed from other values. */}}

{{- define "pcaplake.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 34 characters: with the longest suffix and a hash, the name fits into the 52 characters of a CronJob's name. Longer release
names are truncated. */}}
{{- define "pcaplake.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 34 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "pcaplake.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 34 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 34 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pcaplake.selector" -}}
app.kubernetes.io/name: {{ include "pcaplake.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "pcaplake.labels" -}}
{{ include "pcaplake.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* .image, .root -> repository@digest or repository:tag */}}
{{- define "pcaplake.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* .role: worker, committer, spark, operator, doctor or scheduler */}}
{{- define "pcaplake.serviceAccount" -}}
{{- $account := index .root.Values.serviceAccounts .role -}}
{{- if $account.name -}}
{{ $account.name }}
{{- else if $account.create -}}
{{ include "pcaplake.fullname" .root }}-{{ .role }}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- define "pcaplake.triggerAuthentication" -}}
{{- .Values.keda.authentication.name | default (include "pcaplake.fullname" .) -}}
{{- end -}}

{{/* `90`, `90s`, `1.5m`, `2h`, `500ms` -> whole seconds, rounded up */}}
{{- define "pcaplake.seconds" -}}
{{- $text := . | toString | trim -}}
{{- $number := regexFind "^[0-9.]+(e\\+?[0-9]+)?" $text | float64 -}}
{{- $unit := regexFind "[a-z]+$" (regexReplaceAll "e\\+?[0-9]+" $text "") -}}
{{- $factor := get (dict "" 1.0 "s" 1.0 "ms" 0.001 "m" 60.0 "min" 60.0 "h" 3600.0) $unit -}}
{{- mulf $number $factor | ceil | int64 -}}
{{- end -}}

{{/* `128Mi`, `5G`, `1073741824` -> bytes; 0 for text in any other form. */}}
{{- define "pcaplake.bytes" -}}
{{- $text := kindIs "string" . | ternary . (toString (int64 (toString . | float64))) -}}
{{- $factor := get (dict "" 1.0 "k" 1000.0 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0) (regexFind "[A-Za-z]*$" $text) -}}
{{- if regexMatch "^[0-9.]+[A-Za-z]*$" $text -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) ($factor | default 0.0) | floor | int64 -}}
{{- else -}}
0
{{- end -}}
{{- end -}}

{{/* JSON list of the lakes' URIs for the Spark jobs. Trailing slashes are removed, because a URI with and without one names the same lake. */}}
{{- define "pcaplake.lakes" -}}
{{- $lakes := list -}}
{{- if .Values.spark.lakes -}}
{{- $lakes = .Values.spark.lakes -}}
{{- else if .Values.routes -}}
{{- range .Values.routes -}}{{- $lakes = append $lakes .lake -}}{{- end -}}
{{- else if .Values.settings.lake -}}
{{- $lakes = list .Values.settings.lake -}}
{{- end -}}
{{- $names := list -}}
{{- range $lakes -}}{{- $names = append $names (regexReplaceAll "/+$" . "") -}}{{- end -}}
{{- uniq $names | toJson -}}
{{- end -}}

{{/* "yes" if any Spark job is enabled. */}}
{{- define "pcaplake.sparks" -}}
{{- range $job := list "compact" "vacuum" "quality" "signals" -}}
{{- if (index $.Values.spark $job).enabled -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* "yes" if reconcile is enabled and knows which buckets to list: from the places in its args, or from routes. A route whose bucket is
a pattern needs a matching bucket that another route names. `settings.lake` accepts captures from any bucket and names none. */}}
{{- define "pcaplake.reconciles" -}}
{{- if .Values.reconcile.enabled -}}
{{- $named := list -}}
{{- range .Values.reconcile.args -}}
{{- if regexMatch "^s3[an]?://" . -}}{{- $named = append $named . -}}{{- end -}}
{{- end -}}
{{- $buckets := list -}}
{{- range .Values.routes -}}
{{- if not (regexMatch "[*?\\[]" .bucket) -}}{{- $buckets = append $buckets .bucket -}}{{- end -}}
{{- end -}}
{{- $unknown := not (or .Values.routes .Values.settings.routes) -}}
{{- range .Values.routes -}}
{{- $pattern := printf "^%s$" (.bucket | replace "." "\\." | replace "*" ".*" | replace "?" "." | replace "[!" "[^") -}}
{{- $found := false -}}
{{- range $buckets -}}{{- if regexMatch $pattern . -}}{{- $found = true -}}{{- end -}}{{- end -}}
{{- if not $found -}}{{- $unknown = true -}}{{- end -}}
{{- end -}}
{{- if or $named (not $unknown) -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* The present number of workers, if an autoscaler sets it and Helm must repeat it: if Helm stops setting a field that it once set,
Kubernetes resets the field to 1. With server-side apply, the autoscaler owns the field once it has set it. Setting it again would be a
conflict, at the latest in the next rollback. `helm template` sees no Deployment and renders no number. */}}
{{- define "pcaplake.liveReplicas" -}}
{{- $live := lookup "apps/v1" "Deployment" .Release.Namespace (printf "%s-worker" (include "pcaplake.fullname" .)) -}}
{{- if $live -}}
{{- $applied := false -}}
{{- $counted := false -}}
{{- range $live.metadata.managedFields -}}
{{- $of := dig "fieldsV1" "f:spec" (dict) . -}}
{{- if and (eq .operation "Apply") (hasKey $of "f:selector") -}}{{- $applied = true -}}{{- end -}}
{{- if and (eq .operation "Update") (hasKey $of "f:replicas") -}}{{- $counted = true -}}{{- end -}}
{{- end -}}
{{- if not (and $applied $counted) -}}
{{- $live.spec.replicas | int64 -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* PromQL label matchers that select the series of this release. The monitors copy these labels from the pods (podTargetLabels). */}}
{{- define "pcaplake.scope" -}}
namespace={{ .Release.Namespace | quote }}, app_kubernetes_io_instance={{ .Release.Name | quote }}
{{- end -}}
