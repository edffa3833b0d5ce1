{{/* Refuses credentials in values: the chart would write them in plain text to objects that many people may read. */}}

{{/* Pairs in any form that `pairs` of worker/config/settings.py accepts (a map, a list of KEY=VALUE, KEY=VALUE,KEY=VALUE, JSON
of a map or a list) -> JSON list of [KEY, VALUE] */}}
{{- define "pcaplake.pairs" -}}
{{- $given := . -}}
{{- if kindIs "string" $given -}}
{{- $text := trim $given -}}
{{- if hasPrefix "{" $text -}}{{- $given = fromJson $text -}}
{{- else if hasPrefix "[" $text -}}{{- $given = fromJsonArray $text -}}
{{- else -}}{{- $given = splitList "," $text -}}
{{- end -}}
{{- end -}}
{{- $pairs := list -}}
{{- if kindIs "map" $given -}}
{{- range $name, $value := $given -}}{{- $pairs = append $pairs (list $name (toString $value)) -}}{{- end -}}
{{- else -}}
{{- range $given -}}
{{- $parts := splitn "=" 2 (toString . | trim) -}}
{{- $pairs = append $pairs (list $parts._0 ($parts._1 | default "")) -}}
{{- end -}}
{{- end -}}
{{- $pairs | toJson -}}
{{- end -}}

{{/* [KEY, VALUE] -> "yes" for a credential: the name indicates one, or the value contains one (a connection string, a signed URL,
a URL with a password). Options that name files, addresses or KMS keys are not credentials. */}}
{{- define "pcaplake.isSecret" -}}
{{- $name := index . 0 | lower | replace "-" "_" -}}
{{- $named := regexMatch "key|secret|token|passw|pwd|credential|connection_?string|(^|_)sas(_|$)" $name -}}
{{- if regexMatch "(_file|_path|_uri|_url|_host|_kms_key_id|^kms_key_id|bucket_key_enabled|^credential_type|application_credentials)$" $name -}}
{{- $named = false -}}
{{- end -}}
{{- if or $named (regexMatch "(?i)(accountkey|sharedaccesskey|sharedaccesssignature|[?&]sig)=|://[^/?#@]*:[^/?#@]+@" (index . 1)) -}}yes{{- end -}}
{{- end -}}

{{/* JSON list of messages about credentials in the values. The messages never repeat a credential. */}}
{{- define "pcaplake.refusedSecrets" -}}
{{- $wrong := list -}}
{{- $where := "put it into a Secret and name the Secret in extraEnvFrom" -}}
{{- $roles := "or give the pods a role instead (identity, serviceAccounts)" -}}
{{- with .Values.settings.storage_option -}}
{{- range include "pcaplake.pairs" . | fromJsonArray -}}
{{- if include "pcaplake.isSecret" . -}}
{{- $wrong = append $wrong (printf "settings.storage_option: %s is or contains a credential, and settings are plain text in the pod objects: %s, with the whole storage_option as PCAPLAKE_STORAGE_OPTION; %s" (index . 0) $where $roles) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if and .value (regexMatch "^(AWS|AZURE|GOOGLE|PCAPLAKE)_" .name) -}}
{{- $pairs := list (list .name .value) | toJson -}}
{{- if eq .name "PCAPLAKE_STORAGE_OPTION" -}}{{- $pairs = include "pcaplake.pairs" .value -}}{{- end -}}
{{- $found := false -}}
{{- range fromJsonArray $pairs -}}{{- if include "pcaplake.isSecret" . -}}{{- $found = true -}}{{- end -}}{{- end -}}
{{- if $found -}}
{{- $wrong = append $wrong (printf "extraEnv: %s is or contains a credential in plain text: %s, or reference it with valueFrom.secretKeyRef; %s" .name $where $roles) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $wrong | toJson -}}
{{- end -}}
