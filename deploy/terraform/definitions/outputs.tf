output "policies" {
  description = "IAM policy documents by role, as `pcaplake setup --policies` prints them."
  value = {
    for role, statements in local.statements : role => {
      Version = "2012-10-17"
      Statement = [
        for one in statements : merge(
          {
            Sid      = one.sid
            Effect   = one.effect
            Action   = [for action in one.actions : "${one.service}:${action}"]
            Resource = sort(distinct(one.resources))
          },
          [for condition in [lookup(one, "condition", null)] : { Condition = condition } if condition != null]...
        ) if length(one.actions) > 0
      ]
    }
  }
}

output "tables" {
  description = "The DynamoDB tables."
  value = merge(
    { ledger = { name = var.ledger_table, hash_key = "pk", range_key = "sk", expires = "expireTime" } },
    var.lock_table == null ? {} : {
      locks = { name = var.lock_table, hash_key = "tablePath", range_key = "fileName", expires = "expireTime" }
    },
  )
}

output "queue" {
  description = "The queue that receives the notifications."
  value = {
    name                       = var.queue
    arn                        = local.queue_arn
    visibility_timeout_seconds = 120    # heartbeats extend it
    message_retention_seconds  = 604800 # 7 days
    max_receive_count          = 5
  }
}

output "dead_letters" {
  description = "The dead-letter queue. SQS counts a message's age from its first sending, so the retention is the maximum."
  value = {
    name                      = local.dead_letters
    arn                       = local.dead_arn
    message_retention_seconds = 1209600 # 14 days
    redrive_allow_policy      = { redrivePermission = "byQueue", sourceQueueArns = [local.queue_arn] }
  }
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
      Resource  = local.queue_arn
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
