variable "region" {
  description = "AWS region of the queue and the tables. It must be the provider's region."
  type        = string
}

variable "queue" {
  description = "Name of the SQS queue that receives the S3 notifications (settings.queue)."
  type        = string
  default     = "captures"
}

variable "dead_letters" {
  description = "Name of the dead-letter queue. Default: the name of the queue with -dead appended."
  type        = string
  default     = null
}

variable "places" {
  description = "Where captures are stored: buckets, and the key prefixes that the routes use. The buckets must exist."
  type        = list(object({ bucket = string, prefix = optional(string, "") }))
}

variable "lakes" {
  description = "URIs of the lakes: s3://bucket/prefix. The buckets must exist; workers create the lakes."
  type        = list(string)
}

variable "ledger_table" {
  description = "DynamoDB table of the ledger (settings.ledger_table)."
  type        = string
  default     = "pcaplake_ledger"
}

variable "partition_column" {
  description = "The first of the lakes' partition columns (settings.partition_by) that all tables have: date or vehicle_id. Null if there is none."
  type        = string
  default     = "date"
}

variable "lock_table" {
  description = "DynamoDB table that S3DynamoDBLogStore uses as lock table (settings.lock_table). Set null if settings.log_store is put-if-absent."
  type        = string
  default     = "delta_log"
}

variable "notifications" {
  description = "Create the buckets' notifications. A bucket can have only one notification resource: set false if another configuration manages it, or if SNS or EventBridge sends the notifications."
  type        = bool
  default     = true
}

variable "identity" {
  description = <<-EOT
    How pods obtain their roles. kind `irsa` needs the cluster's OIDC provider. kind `pod-identity` needs the cluster's name;
    this module creates the associations.
  EOT
  type = object({
    kind              = string
    oidc_provider_arn = optional(string)
    oidc_issuer       = optional(string)
    cluster_name      = optional(string)
  })

  validation {
    condition = contains(["irsa", "pod-identity"], var.identity.kind) && (
      var.identity.kind == "irsa" ? var.identity.oidc_provider_arn != null && var.identity.oidc_issuer != null : var.identity.cluster_name != null
    )
    error_message = "irsa needs oidc_provider_arn and oidc_issuer (without https://), pod-identity needs cluster_name."
  }
}

variable "namespace" {
  description = "Kubernetes namespace of the Helm release."
  type        = string
  default     = "pcaplake"
}

variable "release" {
  description = "Name of the Helm release. The names of the ServiceAccounts begin with it."
  type        = string
  default     = "pcaplake"
}

variable "separate_committer" {
  description = "Use the same value as for committer.separate in the chart. If false, workers also commit, and their role has both policies."
  type        = bool
  default     = false
}

variable "alarm_actions" {
  description = "ARNs that alarms on old messages and dead letters notify, such as SNS topics. If empty, no alarms are created."
  type        = list(string)
  default     = []
}

variable "oldest_message_seconds" {
  description = "The alarm fires if the oldest message is older than this."
  type        = number
  default     = 3600
}

variable "tags" {
  description = "Tags of all resources that support tags."
  type        = map(string)
  default     = {}
}
