output "policies" {
  description = "IAM policy documents by role, as `pcaplake setup --policies` prints them."
  value = {
    for role, policy in local.definitions.policies : role => {
      Version = policy.Version
      Statement = [
        for one in policy.Statement : merge(
          one,
          { Resource = sort(distinct(flatten([for pattern in one.Resource : local.expanded[pattern]]))) },
          [for keys in [try(one.Condition["ForAllValues:StringLike"]["dynamodb:LeadingKeys"], null)] : {
            Condition = { "ForAllValues:StringLike" = { "dynamodb:LeadingKeys" = sort(distinct(flatten([for key in keys : local.expanded[key]]))) } }
          } if keys != null]...
        ) if !contains(local.without_locks, one.Sid)
      ]
    }
  }
}

output "tables" {
  description = "The DynamoDB tables."
  value       = { for key, table in local.definitions.tables : key => table if key != "locks" || var.lock_table != null }
}

output "queue" {
  description = "The queue that receives the notifications."
  value       = local.definitions.queue
}

output "dead_letters" {
  description = "The dead-letter queue. SQS counts a message's age from its first sending, so the retention is the maximum."
  value       = local.definitions.dead_letters
}

output "queue_policy" {
  description = "Policy of the queue: allows S3 to send notifications from these buckets of this account."
  value = {
    Version = "2012-10-17"
    Statement = [{
      Sid       = "PcaplakeBuckets"
      Effect    = "Allow"
      Principal = { Service = "s3.amazonaws.com" }
      Action    = "sqs:SendMessage"
      Resource  = local.definitions.queue.arn
      Condition = {
        ArnEquals    = { "aws:SourceArn" = sort([for bucket in keys(local.prefixes) : "${local.bucket_arn}${bucket}"]) }
        StringEquals = { "aws:SourceAccount" = var.account }
      }
    }]
  }
}

output "notifications" {
  description = "Key prefixes by bucket. S3 sends a notification for each object created below them."
  value = {
    for bucket, prefixes in local.prefixes : bucket => sort([
      for prefix in prefixes : prefix if !anytrue([for other in prefixes : other != prefix && startswith(prefix, other)])
    ])
  }
}
