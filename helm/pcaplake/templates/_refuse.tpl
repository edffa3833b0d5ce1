{{/* Values that do not go together: said here, before anything is made. What one value alone may be is in the schema. */}}
{{- define "pcaplake.refuse" -}}
{{- $v := .Values -}}
{{- $wrong := list -}}
{{- if not $v.settings.queue -}}
{{- $wrong = append $wrong "settings.queue is missing: the name of the SQS queue; `pcaplake setup` makes one" -}}
{{- end -}}
{{- with $v.settings.queue -}}
{{- if not (regexMatch "^[A-Za-z0-9_-]{1,80}$" .) -}}
{{- $wrong = append $wrong (printf "settings.queue is %s: give the name of a standard queue of SQS, no URL and no ARN (keda.queueURL takes a URL)" .) -}}
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
{{- $wrong = append $wrong (printf "the lake %s is no URI: write s3://BUCKET/PREFIX; pods share no disk" .) -}}
{{- end -}}
{{- end -}}
{{- $name := include "pcaplake.fullname" . -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- $wrong = append $wrong (printf "%s cannot begin the objects' names, which are of a-z, 0-9 and -: give fullnameOverride" $name) -}}
{{- end -}}
{{- if regexMatch "^(127\\.|localhost$|\\[?::1\\]?$)" $v.settings.http_host -}}
{{- $wrong = append $wrong (printf "settings.http_host is %s: probes and Prometheus come from outside the pod; leave 0.0.0.0, or :: for IPv6" $v.settings.http_host) -}}
{{- end -}}
{{- if and (not $v.committer.separate) (has $v.settings.role (list "worker" "committer")) -}}
{{- $wrong = append $wrong (printf "settings.role is %s: all pods would be that, and none the other; leave it null, and set committer.separate for a Deployment of each" $v.settings.role) -}}
{{- end -}}
{{- range $of, $labels := dict "commonLabels" $v.commonLabels "worker.podLabels" $v.worker.podLabels "committer.podLabels" $v.committer.podLabels "scheduler.podLabels" $v.scheduler.podLabels -}}
{{- range $key, $_ := $labels -}}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|component|version|managed-by)|helm\\.sh/chart|pcaplake/lake)$" $key -}}
{{- $wrong = append $wrong (printf "%s: %s belongs to the chart, selectors find pods by it: use another key" $of $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $memory := dict "worker" $v.worker.resources "reconcile" $v.reconcile.resources "tests" $v.tests.resources -}}
{{- if $v.committer.separate -}}{{- $_ := set $memory "committer" $v.committer.resources -}}{{- end -}}
{{- if eq $v.schedule.by "operator" -}}{{- $_ := set $memory "scheduler" $v.scheduler.resources -}}{{- end -}}
{{- range $of, $resources := $memory -}}
{{- $limit := include "pcaplake.bytes" (dig "limits" "memory" "" $resources | default "0") | int64 -}}
{{- if and $limit (gt (include "pcaplake.bytes" $v.scratch | int64) $limit) -}}
{{- $wrong = append $wrong (printf "scratch is %s, and is memory: more than %s.resources.limits.memory" $v.scratch $of) -}}
{{- end -}}
{{- end -}}
{{- if and (include "pcaplake.sparks" .) (eq $v.spark.mode "pod") -}}
{{- $limit := include "pcaplake.bytes" (dig "limits" "memory" "" $v.spark.resources | default "0") | int64 -}}
{{- $driver := include "pcaplake.bytes" (printf "%si" ($v.spark.driverMemory | upper)) | int64 -}}
{{- if and $limit (ge $driver $limit) -}}
{{- $wrong = append $wrong (printf "spark.driverMemory is %s, and spark.resources.limits.memory has no room for more than the JVM's heap: a tenth and 384 MB of its own and Python's come to it" $v.spark.driverMemory) -}}
{{- end -}}
{{- end -}}
{{- if and (not $v.settings.lake) (not $v.settings.routes) (not $v.routes) -}}
{{- $wrong = append $wrong "no lake: give settings.lake, the URI of one, or routes" -}}
{{- end -}}
{{- if and $v.routes (or $v.settings.lake $v.settings.routes $v.settings.profile) -}}
{{- $wrong = append $wrong "routes are given, so leave settings.lake, settings.routes and settings.profile null" -}}
{{- end -}}
{{- if and $v.settings.routes (or $v.settings.lake $v.settings.profile) -}}
{{- $wrong = append $wrong "settings.routes is given, so leave settings.lake and settings.profile null" -}}
{{- end -}}
{{- range $v.routes -}}
{{- if and .profile (not (hasKey $v.profiles (.profile | trimPrefix "profiles/" | trimSuffix ".yaml"))) -}}
{{- $wrong = append $wrong (printf "a route names the profile %s: write it below profiles, as profiles/NAME.yaml here" .profile) -}}
{{- end -}}
{{- end -}}
{{- with $v.settings.profile -}}
{{- if and (hasPrefix "profiles/" .) (not (hasKey $v.profiles (. | trimPrefix "profiles/" | trimSuffix ".yaml"))) -}}
{{- $wrong = append $wrong (printf "settings.profile is %s: write it below profiles" .) -}}
{{- end -}}
{{- end -}}
{{- if and $v.hpa.enabled $v.keda.enabled -}}
{{- $wrong = append $wrong "hpa.enabled and keda.enabled: two would count the same workers; keep one (KEDA makes an HPA of its own)" -}}
{{- end -}}
{{- if and $v.podMonitor.enabled $v.serviceMonitor.enabled -}}
{{- $wrong = append $wrong "podMonitor.enabled and serviceMonitor.enabled: every figure would be counted twice; keep one" -}}
{{- end -}}
{{- range $name := list "hpa" "keda" -}}
{{- $of := index $v $name -}}
{{- if gt ($of.minReplicas | int64) ($of.maxReplicas | int64) -}}
{{- $wrong = append $wrong (printf "%s.minReplicas is more than %s.maxReplicas" $name $name) -}}
{{- end -}}
{{- end -}}
{{- if and $v.keda.enabled (eq ($v.keda.minReplicas | int64) 0) (not $v.committer.separate) -}}
{{- $wrong = append $wrong "keda.minReplicas is 0: with no worker nobody commits what is staged; set committer.separate, or keep 1" -}}
{{- end -}}
{{- if and $v.keda.enabled (not $v.settings.region) -}}
{{- $wrong = append $wrong "keda.enabled: KEDA needs settings.region to ask SQS" -}}
{{- end -}}
{{- if and $v.committer.separate $v.settings.role -}}
{{- $wrong = append $wrong "committer.separate gives both Deployments their roles: leave settings.role null" -}}
{{- end -}}
{{- if and $v.keda.enabled (not $v.keda.authentication.create) (not $v.keda.authentication.name) -}}
{{- $wrong = append $wrong "keda.authentication: name the one that there is, or let it be made" -}}
{{- end -}}
{{- if and $v.keda.enabled $v.keda.authentication.create (eq $v.keda.authentication.identityOwner "workload") -}}
{{- if $v.keda.authentication.roleArn -}}
{{- $wrong = append $wrong "keda.authentication: roleArn and identityOwner workload exclude each other; keep one" -}}
{{- end -}}
{{- $of := $v.serviceAccounts.worker -}}
{{- if and $of.create (ne $v.identity.kind "irsa") (not (hasKey $of.annotations "eks.amazonaws.com/role-arn")) -}}
{{- $wrong = append $wrong (printf "keda.authentication.identityOwner is workload: KEDA reads the role from the annotation of IRSA on the workers' ServiceAccount, which identity.kind %s does not write; use keda, or keda.authentication.roleArn" $v.identity.kind) -}}
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
{{- $wrong = append $wrong (printf "serviceAccounts.%s.roleArn is missing: identity.kind irsa writes it to the ServiceAccount" $role) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq $v.schedule.by "operator" -}}{{- $roles = append $roles "scheduler" -}}{{- end -}}
{{- $called := dict -}}
{{- range $role := $roles -}}
{{- if (index $v.serviceAccounts $role).create -}}
{{- $account := include "pcaplake.serviceAccount" (dict "root" $ "role" $role) -}}
{{- with get $called $account -}}
{{- $wrong = append $wrong (printf "serviceAccounts.%s and serviceAccounts.%s are both made and both called %s: let one be made, and set create false for the other" . $role $account) -}}
{{- end -}}
{{- $_ := set $called $account $role -}}
{{- end -}}
{{- end -}}
{{- $rights := dict -}}
{{- if $v.settings.deletion_cost -}}{{- $_ := set $rights "worker" "settings.deletion_cost gives it the right to patch pods" -}}{{- end -}}
{{- if eq $v.schedule.by "operator" -}}{{- $_ := set $rights "scheduler" "schedule.by operator gives it rights on Jobs and a Lease" -}}{{- end -}}
{{- if and (eq $v.spark.mode "kubeflow") (include "pcaplake.sparks" .) -}}{{- $_ := set $rights "spark" "an application's driver makes pods" -}}{{- end -}}
{{- range $role, $why := $rights -}}
{{- $account := index $v.serviceAccounts $role -}}
{{- if not (or $account.create $account.name) -}}
{{- $wrong = append $wrong (printf "serviceAccounts.%s: %s, and `default` is every pod's of the namespace: name the one that there is, or let it be made" $role $why) -}}
{{- end -}}
{{- end -}}
{{- if include "pcaplake.sparks" . -}}
{{- if eq ($v.settings.log_store | default "dynamodb") "put-if-absent" -}}
{{- $wrong = append $wrong "settings.log_store is put-if-absent: Spark would commit through another log and rows would be lost; switch spark.compact, spark.vacuum, spark.quality and spark.signals off, or use dynamodb" -}}
{{- end -}}
{{- if eq (include "pcaplake.lakes" .) "[]" -}}
{{- $wrong = append $wrong "settings.routes names a file the chart cannot read: list the lakes for Spark's jobs in spark.lakes" -}}
{{- end -}}
{{- end -}}
{{- if eq $v.schedule.by "operator" -}}
{{- if and (include "pcaplake.sparks" .) (eq $v.spark.mode "kubeflow") -}}
{{- $wrong = append $wrong "schedule.by is operator and spark.mode is kubeflow: a ScheduledSparkApplication has a schedule of its own; keep one" -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,28}[a-z0-9])?$" (include "pcaplake.fullname" .)) -}}
{{- $wrong = append $wrong (printf "schedule.by is operator: %s is no name for its Lease and Jobs, which is up to 30 of a-z, 0-9 and -, and begins with a letter: give fullnameOverride" (include "pcaplake.fullname" .)) -}}
{{- end -}}
{{- $jobs := list -}}
{{- range $job := list "compact" "vacuum" "quality" "signals" -}}
{{- $of := index $v.spark $job -}}
{{- if and $of.enabled $of.schedule -}}{{- $jobs = append $jobs $job -}}{{- end -}}
{{- end -}}
{{- if not (or (include "pcaplake.reconciles" .) $jobs) -}}
{{- $wrong = append $wrong "schedule.by is operator and there is no job with a schedule for it: use cronjobs" -}}
{{- end -}}
{{- if or (lt ($v.schedule.successfulJobsHistoryLimit | int64) 1) (lt ($v.schedule.failedJobsHistoryLimit | int64) 1) -}}
{{- $wrong = append $wrong "schedule.by is operator: keep one finished job at least (schedule.successfulJobsHistoryLimit, failedJobsHistoryLimit); it tells which times are done" -}}
{{- end -}}
{{- range $of := list $v.reconcile $v.spark.compact $v.spark.vacuum $v.spark.quality $v.spark.signals -}}
{{- if and $of.enabled (hasPrefix "@" $of.schedule) -}}
{{- $wrong = append $wrong (printf "schedule.by is operator: write the schedule %s as five fields" $of.schedule) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.spark.signals.enabled (not (or (has "--databases" $v.spark.signals.args) (contains "--databases=" (join " " $v.spark.signals.args)))) -}}
{{- $wrong = append $wrong "spark.signals is enabled: name the databases in spark.signals.args, [--databases, FILE], and mount them with extraVolumes" -}}
{{- end -}}
{{- if hasKey $v.spark.conf "spark.local.dir" -}}
{{- $wrong = append $wrong "spark.conf: spark.local.dir belongs to the chart: spark.scratch says how much room there is" -}}
{{- end -}}
{{- $names := list "settings" "scratch" "work" "spark-local-dir-1" "jobs" -}}
{{- range $v.extraVolumes -}}
{{- if has .name $names -}}
{{- $wrong = append $wrong (printf "extraVolumes: the name %s is taken" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $taken := list "/" "/app" "/etc/pcaplake" "/etc/pcaplake-jobs" "/scratch" "/tmp" -}}
{{- range $v.extraVolumeMounts -}}
{{- if or (has (clean .mountPath) $taken) (hasPrefix "/etc/pcaplake/" .mountPath) -}}
{{- $wrong = append $wrong (printf "extraVolumeMounts: the place %s is taken: mount %s elsewhere" .mountPath .name) -}}
{{- end -}}
{{- $taken = append $taken (clean .mountPath) -}}
{{- if not (has .name $names) -}}
{{- $wrong = append $wrong (printf "extraVolumeMounts: there is no volume %s in extraVolumes" .name) -}}
{{- end -}}
{{- end -}}
{{- $variables := list -}}
{{- range $v.extraEnv -}}
{{- if has .name $variables -}}
{{- $wrong = append $wrong (printf "extraEnv: %s is there twice" .name) -}}
{{- end -}}
{{- $variables = append $variables .name -}}
{{- if has .name (list "PCAPLAKE_CONFIG" "PCAPLAKE_HTTP_PORT" "PCAPLAKE_HTTP_HOST" "PCAPLAKE_DRAIN_TIMEOUT" "PCAPLAKE_ROLE" "PCAPLAKE_QUEUE" "PCAPLAKE_LAKE" "PCAPLAKE_ROUTES" "PCAPLAKE_LOG_STORE" "PCAPLAKE_LOCK_TABLE" "PCAPLAKE_DELETION_COST") -}}
{{- $wrong = append $wrong (printf "extraEnv: %s belongs to the chart: use settings" .name) -}}
{{- end -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "\n\nThese values cannot be used:\n- %s\n" (join "\n- " $wrong)) -}}
{{- end -}}
{{- end -}}
