variable "partition" {
  description = "Of the account: aws, aws-cn or aws-us-gov."
  type        = string
  default     = "aws"
}

variable "region" {
  description = "Of queue and tables."
  type        = string
}

variable "account" {
  description = "Its 12 digits."
  type        = string
}

variable "queue" {
  description = "Name of the SQS queue with the notifications (settings.queue)."
  type        = string

  validation {
    condition     = !endswith(var.queue, ".fifo")
    error_message = "S3 sends to no FIFO queue: name a standard one."
  }
}

variable "dead_letters" {
  description = "Name of the queue of dead letters; by default the queue's with -dead."
  type        = string
  default     = null
}

variable "places" {
  description = "Where captures lie: what the routes' keys begin with, by bucket."
  type        = list(object({ bucket = string, prefix = optional(string, "") }))

  validation {
    condition     = length(var.places) > 0
    error_message = "Name one place at least: { bucket = \"raw\", prefix = \"drives/\" }."
  }
}

variable "lakes" {
  description = "URIs of the lakes: s3://bucket/prefix."
  type        = list(string)

  validation {
    condition     = length(var.lakes) > 0 && alltrue([for lake in var.lakes : startswith(lake, "s3://") && !endswith(lake, "/")])
    error_message = "Write each lake as s3://bucket/prefix, without a slash at the end."
  }
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
