{{/* The files that pods read are part of the pod template: each is an annotation that the Downward API mounts. So a pod of an older
revision always reads that revision's files, even if it is created again. A ConfigMap would not do: Helm changes or deletes it while
older pods still use it. */}}

{{/* .root, .component, .files: additional files, a dict path -> text -> JSON of path -> text: the files in /etc/pcaplake of this
component's pods. Spark jobs receive their lake as an argument, so they and the operator need no routes. Each job and lake has a pod
template; if each contained the routes of all lakes, the release would grow with the square of their number. */}}
{{- define "pcaplake.files" -}}
{{- $v := .root.Values -}}
{{- $routed := not (has .component (list "compact" "vacuum" "quality" "signals" "scheduler")) -}}
{{- $given := dict -}}
{{- range $name, $value := $v.settings -}}
{{- if not (or (kindIs "invalid" $value) (and (not $routed) (has $name (list "routes" "profile")))) -}}
{{- $_ := set $given $name $value -}}
{{- end -}}
{{- end -}}
{{- $files := dict -}}
{{- if $routed -}}
{{- with $v.routes -}}
{{- $_ := set $given "routes" "routes.yaml" -}}
{{- $_ := set $files "routes.yaml" (dict "routes" . | toYaml) -}}
{{- end -}}
{{- range $name, $profile := $v.profiles -}}
{{- $_ := set $files (printf "profiles/%s.yaml" $name) (kindIs "string" $profile | ternary $profile (toYaml $profile)) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $files "fleet.yaml" (toYaml $given) -}}
{{- mergeOverwrite $files (.files | default dict) | toJson -}}
{{- end -}}

{{/* path -> name of the annotation */}}
{{- define "pcaplake.annotationOf" -}}
pcaplake/{{ replace "profiles/" "profile-" . }}
{{- end -}}

{{/* arguments as for pcaplake.files -> JSON of the annotations */}}
{{- define "pcaplake.settingsAnnotations" -}}
{{- $annotations := dict -}}
{{- range $path, $text := include "pcaplake.files" . | fromJson -}}
{{- $_ := set $annotations (include "pcaplake.annotationOf" $path) $text -}}
{{- end -}}
{{- $annotations | toJson -}}
{{- end -}}

{{/* arguments as for pcaplake.files */}}
{{- define "pcaplake.settingsVolume" -}}
- name: settings
  downwardAPI:
    items:
      {{- range $path, $_ := include "pcaplake.files" . | fromJson }}
      - {path: {{ $path }}, fieldRef: {fieldPath: "metadata.annotations['{{ include "pcaplake.annotationOf" $path }}']"}}
      {{- end }}
{{- end -}}
