variable "partition" {
  description = "AWS partition of the account: aws, aws-cn or aws-us-gov."
  type        = string
  default     = "aws"
}

variable "region" {
  description = "AWS region of the queue and the tables."
  type        = string
}

variable "account" {
  description = "AWS account id (12 digits)."
  type        = string
}

variable "queue" {
  description = "Name of the SQS queue that receives the S3 notifications (settings.queue)."
  type        = string

  validation {
    condition     = !endswith(var.queue, ".fifo")
    error_message = "S3 cannot send notifications to a FIFO queue: use a standard queue."
  }
}

variable "dead_letters" {
  description = "Name of the dead-letter queue. Default: the name of the queue with -dead appended."
  type        = string
  default     = null
}

variable "places" {
  description = "Where captures are stored: buckets, and the key prefixes that the routes use."
  type        = list(object({ bucket = string, prefix = optional(string, "") }))

  validation {
    condition     = length(var.places) > 0
    error_message = "Set at least one place: { bucket = \"raw\", prefix = \"drives/\" }."
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
