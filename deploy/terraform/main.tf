# Creates the same AWS resources as `pcaplake setup`, for users of Terraform or OpenTofu. Use one of the two, not both.

data "aws_partition" "current" {}
data "aws_caller_identity" "current" {}

module "definitions" {
  source = "./definitions"

  partition    = data.aws_partition.current.partition
  region       = var.region
  account      = data.aws_caller_identity.current.account_id
  queue        = var.queue
  dead_letters = var.dead_letters
  places       = var.places
  lakes        = var.lakes
  ledger_table = var.ledger_table
  lock_table   = var.lock_table

  partition_column = var.partition_column
}

# -- tables -----------------------------------------------------------------------------------------------------------
resource "aws_dynamodb_table" "this" {
  for_each = module.definitions.tables

  name                        = each.value.name
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = each.value.hash_key
  range_key                   = each.value.range_key
  deletion_protection_enabled = true
  tags                        = var.tags

  attribute {
    name = each.value.hash_key
    type = "S"
  }

  attribute {
    name = each.value.range_key
    type = "S"
  }

  ttl {
    attribute_name = each.value.expires
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }
}

# -- queue ------------------------------------------------------------------------------------------------------------
resource "aws_sqs_queue" "dead_letters" {
  name                      = module.definitions.dead_letters.name
  message_retention_seconds = module.definitions.dead_letters.message_retention_seconds
  redrive_allow_policy      = jsonencode(module.definitions.dead_letters.redrive_allow_policy) # no other queue may use it
  tags                      = var.tags
}

resource "aws_sqs_queue" "captures" {
  name                       = module.definitions.queue.name
  visibility_timeout_seconds = module.definitions.queue.visibility_timeout_seconds
  message_retention_seconds  = module.definitions.queue.message_retention_seconds
  tags                       = var.tags

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = module.definitions.queue.max_receive_count
  })
}

resource "aws_sqs_queue_policy" "captures" {
  queue_url = aws_sqs_queue.captures.id
  policy    = jsonencode(module.definitions.queue_policy)
}

resource "aws_s3_bucket_notification" "captures" {
  for_each = var.notifications ? module.definitions.notifications : {}

  bucket     = each.key
  depends_on = [aws_sqs_queue_policy.captures]

  dynamic "queue" {
    for_each = each.value

    content {
      queue_arn     = aws_sqs_queue.captures.arn
      events        = ["s3:ObjectCreated:*"]
      filter_prefix = queue.value == "" ? null : queue.value
    }
  }
}

# -- roles ------------------------------------------------------------------------------------------------------------
locals {
  accounts = merge(
    { for role in ["worker", "spark", "operator", "doctor"] : role => "${var.release}-${role}" },
    var.separate_committer ? { committer = "${var.release}-committer" } : {},
  )
  granted = merge(
    { for role in keys(local.accounts) : "${role}-${role}" => { role = role, policy = role } },
    var.separate_committer ? {} : { "worker-committer" = { role = "worker", policy = "committer" } },
  )
}

data "aws_iam_policy_document" "trust" {
  for_each = local.accounts

  dynamic "statement" {
    for_each = var.identity.kind == "irsa" ? [1] : []

    content {
      actions = ["sts:AssumeRoleWithWebIdentity"]

      principals {
        type        = "Federated"
        identifiers = [var.identity.oidc_provider_arn]
      }

      condition {
        test     = "StringEquals"
        variable = "${var.identity.oidc_issuer}:sub"
        values   = ["system:serviceaccount:${var.namespace}:${each.value}"]
      }

      condition {
        test     = "StringEquals"
        variable = "${var.identity.oidc_issuer}:aud"
        values   = ["sts.amazonaws.com"]
      }
    }
  }

  dynamic "statement" {
    for_each = var.identity.kind == "pod-identity" ? [1] : []

    content {
      actions = ["sts:AssumeRole", "sts:TagSession"]

      principals {
        type        = "Service"
        identifiers = ["pods.eks.amazonaws.com"]
      }
    }
  }
}

resource "aws_iam_role" "this" {
  for_each = local.accounts

  name               = each.value
  assume_role_policy = data.aws_iam_policy_document.trust[each.key].json
  tags               = var.tags
}

resource "aws_iam_role_policy" "this" {
  for_each = local.granted

  name   = "pcaplake-${each.value.policy}"
  role   = aws_iam_role.this[each.value.role].id
  policy = jsonencode(module.definitions.policies[each.value.policy])
}

resource "aws_eks_pod_identity_association" "this" {
  for_each = var.identity.kind == "pod-identity" ? local.accounts : {}

  cluster_name    = var.identity.cluster_name
  namespace       = var.namespace
  service_account = each.value
  role_arn        = aws_iam_role.this[each.key].arn
  tags            = var.tags
}

# -- alarms on what pcaplake itself cannot observe --------------------------------------------------------------------
resource "aws_cloudwatch_metric_alarm" "oldest_message" {
  count = length(var.alarm_actions) > 0 ? 1 : 0

  alarm_name          = "${var.queue}-oldest-message"
  alarm_description   = "A message has waited for more than ${var.oldest_message_seconds} s. See docs/runbooks/behind.md"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateAgeOfOldestMessage"
  dimensions          = { QueueName = aws_sqs_queue.captures.name }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 3
  threshold           = var.oldest_message_seconds
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_actions
  tags                = var.tags
}

resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  count = length(var.alarm_actions) > 0 ? 1 : 0

  alarm_name          = "${var.queue}-dead-letters"
  alarm_description   = "A message was received five times without success. See docs/runbooks/redelivery.md"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = aws_sqs_queue.dead_letters.name }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 1
  threshold           = 0
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_actions
  tags                = var.tags
}
