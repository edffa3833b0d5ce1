{{/* Refuses values that contradict each other before anything is created. The schema checks each value alone. */}}
{{- define "pcaplake.refuse" -}}
{{- $v := .Values -}}
{{- $wrong := list -}}
{{- if not $v.settings.queue -}}
{{- $wrong = append $wrong "settings.queue is missing: set it to the name of the SQS queue (`pcaplake setup` creates one)" -}}
{{- end -}}
{{- with $v.settings.queue -}}
{{- if not (regexMatch "^[A-Za-z0-9_-]{1,80}$" .) -}}
{{- $wrong = append $wrong (printf "settings.queue is %s: give the name of a standard SQS queue, not a URL or an ARN (keda.queueURL takes a URL)" .) -}}
{{- end -}}
{{- end -}}
{{- with $v.keda.queueURL -}}
{{- if not (regexMatch "^(https?://[^/]+/.+|[A-Za-z0-9_-]{1,80})$" .) -}}
{{- $wrong = append $wrong (printf "keda.queueURL is %s: give a queue's URL, https://sqs.REGION.amazonaws.com/ACCOUNT/NAME, or its name" .) -}}
{{- end -}}
{{- end -}}
{{- $uris := concat (list) $v.spark.lakes -}}
{{- with $v.settings.lake -}}{{- $uris = append $uris . -}}{{- end -}}
{{- range $v.routes -}}{{- $uris = append $uris .lake -}}{{- end -}}
{{- range uniq $uris -}}
{{- if not (regexMatch "^[a-z][a-z0-9]*://[^/\\s]+(/\\S*)?$" .) -}}
{{- $wrong = append $wrong (printf "the lake %s is not a URI: write s3://BUCKET/PREFIX, because pods share no disk" .) -}}
{{- end -}}
{{- end -}}
{{- $name := include "pcaplake.fullname" . -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- $wrong = append $wrong (printf "%s cannot be the prefix of object names, which contain only a-z, 0-9 and -: set fullnameOverride" $name) -}}
{{- end -}}
{{- if regexMatch "^(127\\.|localhost$|\\[?::1\\]?$)" $v.settings.http_host -}}
{{- $wrong = append $wrong (printf "settings.http_host is %s: probes and Prometheus connect from outside the pod; keep 0.0.0.0, or use :: for IPv6" $v.settings.http_host) -}}
{{- end -}}
{{- if and (not $v.committer.separate) (has $v.settings.role (list "worker" "committer")) -}}
{{- $wrong = append $wrong (printf "settings.role is %s: all pods would have this role, and none the other; leave it null, and set committer.separate for one Deployment of each" $v.settings.role) -}}
{{- end -}}
{{- $labeled := dict "commonLabels" $v.commonLabels "spark.podLabels" $v.spark.podLabels -}}
{{- range $of := list "pods" "worker" "committer" "scheduler" "reconcile" "tests" -}}
{{- $_ := set $labeled (printf "%s.podLabels" $of) (index $v $of).podLabels -}}
{{- end -}}
{{- range $job := list "compact" "vacuum" "quality" "signals" -}}
{{- $_ := set $labeled (printf "spark.%s.pod.podLabels" $job) (index $v.spark $job).pod.podLabels -}}
{{- end -}}
{{- range $of, $labels := $labeled -}}
{{- range $key, $_ := $labels -}}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|component|version|managed-by)|helm\\.sh/chart|pcaplake/lake)$" $key -}}
{{- $wrong = append $wrong (printf "%s: the chart sets the label %s and selects pods by it; use another key" $of $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $memory := dict "worker" $v.worker.resources "reconcile" $v.reconcile.resources "tests" $v.tests.resources -}}
{{- if $v.committer.separate -}}{{- $_ := set $memory "committer" $v.committer.resources -}}{{- end -}}
{{- if eq $v.schedule.by "operator" -}}{{- $_ := set $memory "scheduler" $v.scheduler.resources -}}{{- end -}}
{{- range $of, $resources := $memory -}}
{{- $limit := include "pcaplake.bytes" (dig "limits" "memory" "" $resources | default "0") | int64 -}}
{{- if and $limit (gt (include "pcaplake.bytes" $v.scratch | int64) $limit) -}}
{{- $wrong = append $wrong (printf "scratch is %s: it counts as memory, and exceeds %s.resources.limits.memory" $v.scratch $of) -}}
{{- end -}}
{{- end -}}
{{- range $job := list "compact" "vacuum" "quality" "signals" -}}
{{- if and (index $v.spark $job).enabled (eq $v.spark.mode "pod") -}}
{{- $of := include "pcaplake.sparkValues" (dict "root" $ "job" $job) | fromJson -}}
{{- $limit := include "pcaplake.bytes" (dig "limits" "memory" "" $of.resources | default "0") | int64 -}}
{{- $driver := include "pcaplake.bytes" (printf "%si" ($of.driverMemory | upper)) | int64 -}}
{{- if and $limit (ge $driver $limit) -}}
{{- $wrong = append $wrong (printf "spark.%s: driverMemory is %s: resources.limits.memory has no room beyond the JVM's heap; raise the limit by the JVM's overhead (10 %% and 384 MB) and Python's memory" $job $of.driverMemory) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (not $v.settings.lake) (not $v.settings.routes) (not $v.routes) -}}
{{- $wrong = append $wrong "no lake: set settings.lake to a lake's URI, or set routes" -}}
{{- end -}}
{{- if and $v.routes (or $v.settings.lake $v.settings.routes $v.settings.profile) -}}
{{- $wrong = append $wrong "routes is set: leave settings.lake, settings.routes and settings.profile null" -}}
{{- end -}}
{{- if and $v.settings.routes (or $v.settings.lake $v.settings.profile) -}}
{{- $wrong = append $wrong "settings.routes is set: leave settings.lake and settings.profile null" -}}
{{- end -}}
{{- range $v.routes -}}
{{- if and (hasPrefix "profiles/" (.profile | default "")) (not (hasKey $v.profiles (.profile | trimPrefix "profiles/" | trimSuffix ".yaml"))) -}}
{{- $wrong = append $wrong (printf "a route names the profile %s, which does not exist: add it to profiles and name it profiles/NAME.yaml in the route" .profile) -}}
{{- end -}}
{{- end -}}
{{- with $v.settings.profile -}}
{{- if and (hasPrefix "profiles/" .) (not (hasKey $v.profiles (. | trimPrefix "profiles/" | trimSuffix ".yaml"))) -}}
{{- $wrong = append $wrong (printf "settings.profile is %s, which does not exist: add it to profiles" .) -}}
{{- end -}}
{{- end -}}
{{- if and $v.hpa.enabled $v.keda.enabled -}}
{{- $wrong = append $wrong "hpa.enabled and keda.enabled: both would scale the same workers; enable only one (KEDA creates its own HPA)" -}}
{{- end -}}
{{- if and $v.podMonitor.enabled $v.serviceMonitor.enabled -}}
{{- $wrong = append $wrong "podMonitor.enabled and serviceMonitor.enabled: every metric would be counted twice; enable only one" -}}
{{- end -}}
{{- range $name := list "hpa" "keda" -}}
{{- $of := index $v $name -}}
{{- if gt ($of.minReplicas | int64) ($of.maxReplicas | int64) -}}
{{- $wrong = append $wrong (printf "%s.minReplicas is more than %s.maxReplicas" $name $name) -}}
{{- end -}}
{{- end -}}
{{- if and $v.keda.enabled (eq ($v.keda.minReplicas | int64) 0) (not $v.committer.separate) -}}
{{- $wrong = append $wrong "keda.minReplicas is 0: without workers, no process commits what is staged; set committer.separate, or set it to 1" -}}
{{- end -}}
{{- if and $v.keda.enabled (not $v.settings.region) -}}
{{- $wrong = append $wrong "keda.enabled: KEDA needs settings.region to query SQS" -}}
{{- end -}}
{{- if and $v.committer.separate $v.settings.role -}}
{{- $wrong = append $wrong "committer.separate gives both Deployments their roles: leave settings.role null" -}}
{{- end -}}
{{- if and $v.keda.enabled (not $v.keda.authentication.create) (not $v.keda.authentication.name) -}}
{{- $wrong = append $wrong "keda.authentication.create is false: set keda.authentication.name to an existing TriggerAuthentication" -}}
{{- end -}}
{{- if and $v.keda.enabled $v.keda.authentication.create (eq $v.keda.authentication.identityOwner "workload") -}}
{{- if $v.keda.authentication.roleArn -}}
{{- $wrong = append $wrong "keda.authentication: roleArn and identityOwner workload cannot be combined; remove one" -}}
{{- end -}}
{{- $of := $v.serviceAccounts.worker -}}
{{- if and $of.create (ne $v.identity.kind "irsa") (not (hasKey $of.annotations "eks.amazonaws.com/role-arn")) -}}
{{- $wrong = append $wrong (printf "keda.authentication.identityOwner is workload: KEDA reads the role from the IRSA annotation of the workers' ServiceAccount, which identity.kind %s does not write; set identityOwner to keda, with keda.authentication.roleArn if needed" $v.identity.kind) -}}
{{- end -}}
{{- end -}}
{{- $roles := list "worker" "doctor" -}}
{{- if $v.committer.separate -}}{{- $roles = append $roles "committer" -}}{{- end -}}
{{- if include "pcaplake.sparks" . -}}{{- $roles = append $roles "spark" -}}{{- end -}}
{{- if $v.reconcile.enabled -}}{{- $roles = append $roles "operator" -}}{{- end -}}
{{- if eq $v.identity.kind "irsa" -}}
{{- range $role := $roles -}}
{{- $account := index $v.serviceAccounts $role -}}
{{- if and $account.create (not $account.roleArn) -}}
{{- $wrong = append $wrong (printf "serviceAccounts.%s.roleArn is missing: identity.kind is irsa, which needs the role's ARN" $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq $v.schedule.by "operator" -}}{{- $roles = append $roles "scheduler" -}}{{- end -}}
{{- $called := dict -}}
{{- range $role := $roles -}}
{{- if (index $v.serviceAccounts $role).create -}}
{{- $account := include "pcaplake.serviceAccount" (dict "root" $ "role" $role) -}}
{{- with get $called $account -}}
{{- $wrong = append $wrong (printf "serviceAccounts.%s and serviceAccounts.%s are both created with the name %s: let the chart create one, and set create to false for the other" . $role $account) -}}
{{- end -}}
{{- $_ := set $called $account $role -}}
{{- end -}}
{{- end -}}
{{- $rights := dict -}}
{{- if $v.settings.deletion_cost -}}{{- $_ := set $rights "worker" "settings.deletion_cost grants it permission to patch pods" -}}{{- end -}}
{{- if eq $v.schedule.by "operator" -}}{{- $_ := set $rights "scheduler" "schedule.by operator grants it permissions on Jobs and a Lease" -}}{{- end -}}
{{- if and (eq $v.spark.mode "kubeflow") (include "pcaplake.sparks" .) -}}{{- $_ := set $rights "spark" "the driver of a Spark application needs permission to create pods" -}}{{- end -}}
{{- range $role, $why := $rights -}}
{{- $account := index $v.serviceAccounts $role -}}
{{- if not (or $account.create $account.name) -}}
{{- $wrong = append $wrong (printf "serviceAccounts.%s: %s, and all pods in the namespace share the account `default`; set name to an existing ServiceAccount, or set create to true" $role $why) -}}
{{- end -}}
{{- end -}}
{{- if include "pcaplake.sparks" . -}}
{{- if eq ($v.settings.log_store | default "dynamodb") "put-if-absent" -}}
{{- $wrong = append $wrong "settings.log_store is put-if-absent: Spark would commit through another log store, and rows would be lost; disable spark.compact, spark.vacuum, spark.quality and spark.signals, or use dynamodb" -}}
{{- end -}}
{{- if eq (include "pcaplake.lakes" .) "[]" -}}
{{- $wrong = append $wrong "settings.routes names a file that the chart cannot read: list the lakes for the Spark jobs in spark.lakes" -}}
{{- end -}}
{{- end -}}
{{- if eq $v.schedule.by "operator" -}}
{{- if and (include "pcaplake.sparks" .) (eq $v.spark.mode "kubeflow") -}}
{{- $wrong = append $wrong "schedule.by is operator and spark.mode is kubeflow: a ScheduledSparkApplication has its own schedule; change one of them" -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,28}[a-z0-9])?$" (include "pcaplake.fullname" .)) -}}
{{- $wrong = append $wrong (printf "schedule.by is operator: %s cannot be the prefix of its Lease and Jobs, which has at most 30 characters of a-z, 0-9 and - and starts with a letter; set fullnameOverride" (include "pcaplake.fullname" .)) -}}
{{- end -}}
{{- $jobs := list -}}
{{- range $job := list "compact" "vacuum" "quality" "signals" -}}
{{- $of := index $v.spark $job -}}
{{- if and $of.enabled $of.schedule -}}{{- $jobs = append $jobs $job -}}{{- end -}}
{{- end -}}
{{- if not (or (include "pcaplake.reconciles" .) $jobs) -}}
{{- $wrong = append $wrong "schedule.by is operator, but no enabled job has a schedule: enable a job, or set schedule.by to cronjobs" -}}
{{- end -}}
{{- if or (lt ($v.schedule.successfulJobsHistoryLimit | int64) 1) (lt ($v.schedule.failedJobsHistoryLimit | int64) 1) -}}
{{- $wrong = append $wrong "schedule.by is operator: set schedule.successfulJobsHistoryLimit and schedule.failedJobsHistoryLimit to at least 1; the operator reads from finished Jobs which runs are done" -}}
{{- end -}}
{{- range $of := list $v.reconcile $v.spark.compact $v.spark.vacuum $v.spark.quality $v.spark.signals -}}
{{- if and $of.enabled (hasPrefix "@" $of.schedule) -}}
{{- $wrong = append $wrong (printf "schedule.by is operator: write the schedule %s with five fields" $of.schedule) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.spark.signals.enabled (not (or (has "--databases" $v.spark.signals.args) (contains "--databases=" (join " " $v.spark.signals.args)))) -}}
{{- $wrong = append $wrong "spark.signals.enabled: add the databases to spark.signals.args, [--databases, FILE], and mount them with extraVolumes" -}}
{{- end -}}
{{- if hasKey $v.spark.conf "spark.local.dir" -}}
{{- $wrong = append $wrong "spark.conf: the chart sets spark.local.dir; remove it, and set the volume's size with spark.scratch" -}}
{{- end -}}
{{- $names := list "settings" "scratch" "work" "spark-local-dir-1" -}}
{{- range $v.extraVolumes -}}
{{- if has .name $names -}}
{{- $wrong = append $wrong (printf "extraVolumes: the name %s is already used; choose another name" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $taken := list "/" "/app" "/etc/pcaplake" "/scratch" "/tmp" -}}
{{- range $v.extraVolumeMounts -}}
{{- if or (has (clean .mountPath) $taken) (hasPrefix "/etc/pcaplake/" .mountPath) -}}
{{- $wrong = append $wrong (printf "extraVolumeMounts: the path %s is already used; mount %s elsewhere" .mountPath .name) -}}
{{- end -}}
{{- $taken = append $taken (clean .mountPath) -}}
{{- if not (has .name $names) -}}
{{- $wrong = append $wrong (printf "extraVolumeMounts: extraVolumes has no volume %s" .name) -}}
{{- end -}}
{{- end -}}
{{- $variables := list -}}
{{- range $v.extraEnv -}}
{{- if has .name $variables -}}
{{- $wrong = append $wrong (printf "extraEnv: %s occurs twice" .name) -}}
{{- end -}}
{{- $variables = append $variables .name -}}
{{- if has .name (list "PCAPLAKE_CONFIG" "PCAPLAKE_HTTP_PORT" "PCAPLAKE_HTTP_HOST" "PCAPLAKE_DRAIN_TIMEOUT" "PCAPLAKE_ROLE" "PCAPLAKE_QUEUE" "PCAPLAKE_LAKE" "PCAPLAKE_ROUTES" "PCAPLAKE_LOG_STORE" "PCAPLAKE_LOCK_TABLE" "PCAPLAKE_DELETION_COST") -}}
{{- $wrong = append $wrong (printf "extraEnv: the chart sets %s; use settings instead" .name) -}}
{{- end -}}
{{- end -}}
{{- $worker := list "settings, routes and profiles" "mount profiles with extraVolumes, and use their absolute paths" -}}
{{- $scheduler := list "settings and the operator's jobs" "set schedule.by to cronjobs" -}}
{{- range $component, $said := dict "worker" $worker "scheduler" $scheduler -}}
{{- $files := dict -}}
{{- if and (eq $component "scheduler") (eq $v.schedule.by "operator") -}}{{- $files = include "pcaplake.plan" $ | fromJson -}}{{- end -}}
{{- $size := 0 -}}
{{- range $path, $text := include "pcaplake.files" (dict "root" $ "component" $component "files" $files) | fromJson -}}
{{- $size = add $size (len $text) -}}
{{- end -}}
{{- if gt $size 240000 -}}
{{- $wrong = append $wrong (printf "%s have %d bytes, but a pod's annotations can hold only 240000: %s" (index $said 0) $size (index $said 1)) -}}
{{- end -}}
{{- end -}}
{{- $wrong = concat $wrong (include "pcaplake.refusedSecrets" . | fromJsonArray) -}}
{{- if $wrong -}}
{{- fail (printf "\n\nThese values cannot be used:\n- %s\n" (join "\n- " $wrong)) -}}
{{- end -}}
{{- end -}}
