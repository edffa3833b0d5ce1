variable "region" {
  description = "Of queue and tables; the provider's."
  type        = string
}

variable "queue" {
  description = "Name of the SQS queue with the notifications (settings.queue)."
  type        = string
  default     = "captures"
}

variable "dead_letters" {
  description = "Name of the queue of dead letters; by default the queue's with -dead."
  type        = string
  default     = null
}

variable "places" {
  description = "Where captures lie: what the routes' keys begin with, by bucket. The buckets are there."
  type        = list(object({ bucket = string, prefix = optional(string, "") }))
}

variable "lakes" {
  description = "URIs of the lakes, s3://bucket/prefix. The buckets are there; workers make the lakes."
  type        = list(string)
}

variable "ledger_table" {
  description = "DynamoDB table of the ledger (settings.ledger_table)."
  type        = string
  default     = "pcaplake_ledger"
}

variable "lock_table" {
  description = "DynamoDB table of Spark's S3DynamoDBLogStore (settings.lock_table); null where settings.log_store is put-if-absent."
  type        = string
  default     = "delta_log"
}

variable "notifications" {
  description = "Make the buckets' notifications. A bucket has one such resource: false where another one has it, or where SNS or EventBridge announces."
  type        = bool
  default     = true
}

variable "identity" {
  description = <<-EOT
    How pods become the roles: kind is `irsa` (with the cluster's OIDC provider) or `pod-identity` (with its name; the
    associations are made here).
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
  description = "Of the release."
  type        = string
  default     = "pcaplake"
}

variable "release" {
  description = "Name of the Helm release; ServiceAccounts are called by it."
  type        = string
  default     = "pcaplake"
}

variable "separate_committer" {
  description = "As committer.separate of the chart: otherwise workers commit, and have both policies."
  type        = bool
  default     = false
}

variable "alarm_actions" {
  description = "ARNs that are told of old messages and dead letters (SNS topics); no alarms where there are none."
  type        = list(string)
  default     = []
}

variable "oldest_message_seconds" {
  description = "Age of the oldest message that is told."
  type        = number
  default     = 3600
}

variable "tags" {
  description = "Of everything that takes tags."
  type        = map(string)
  default     = {}
}
