# Defines queues, tables, policies and notifications as data, without a provider or resources. `terraform apply` in this folder
# creates nothing and prints all definitions. A test compares them with what `pcaplake setup` creates (worker/admin/setup/).

locals {
  bucket_arn = "arn:${var.partition}:s3:::"
  queue_arn  = "arn:${var.partition}:sqs:${var.region}:${var.account}:${var.queue}"
  dead_arn   = "arn:${var.partition}:sqs:${var.region}:${var.account}:${local.dead_letters}"
  table_arn  = "arn:${var.partition}:dynamodb:${var.region}:${var.account}:table/"

  dead_letters = var.dead_letters == null ? "${var.queue}-dead" : var.dead_letters

  # IAM treats `*`, `?` and `$` as special characters; `$${*}`, `$${?}` and `$${$}` match them literally
  literal = {
    for text in concat([for place in var.places : place.prefix], [for lake in var.lakes : trimprefix(lake, "s3://")]) :
    text => join("", [for letter in split("", text) : contains(["$", "*", "?"], letter) ? "$${${letter}}" : letter])
  }
  inside = {
    for pattern in concat(local.records, local.staged, local.committed, [local.version, "*", "*/_delta_log/*", "_pcaplake/*", "_pcaplake/doctor/*", "_pcaplake/stages/*", "_pcaplake/swaps/*"]) :
    pattern => [for lake in var.lakes : "${local.bucket_arn}${local.literal[trimprefix(lake, "s3://")]}/${pattern}"]
  }
  records         = ["_pcaplake/lake.json", "_pcaplake/batches/*", "_pcaplake/losses/*", "_pcaplake/overwrites/*"]
  data_files      = var.partition_column == null ? "*-*.parquet" : "*/${coalesce(var.partition_column, "-")}=*"
  staged          = [local.data_files, "_pcaplake/clock"]
  committed       = ["*/_delta_log/*checkpoint*", "*/_delta_log/.tmp/*"]
  version         = "*/_delta_log/????????????????????.json"
  below           = [for place in var.places : "${local.bucket_arn}${place.bucket}/${local.literal[place.prefix]}"]
  captures        = [for place in local.below : "${place}*"]
  capture_buckets = [for place in var.places : "${local.bucket_arn}${place.bucket}"]
  lake_buckets    = [for lake in var.lakes : "${local.bucket_arn}${split("/", trimprefix(lake, "s3://"))[0]}"]

  of_queue = {
    worker    = ["ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl", "ReceiveMessage"]
    committer = ["GetQueueAttributes", "GetQueueUrl", "SendMessage"]
    operator  = ["GetQueueAttributes", "GetQueueUrl", "SendMessage"]
    doctor    = ["ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl"]
  }
  of_dead_letters = {
    operator = ["ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl", "ReceiveMessage"]
    doctor   = ["GetQueueAttributes", "GetQueueUrl"]
  }
  of_ledger = {
    worker    = ["BatchGetItem", "DescribeTable"]
    committer = ["BatchGetItem", "ConditionCheckItem", "DeleteItem", "DescribeTable", "GetItem", "PutItem", "Query", "UpdateItem"]
    operator  = ["BatchGetItem", "DescribeTable", "GetItem"]
    spark     = ["BatchGetItem", "DescribeTable", "GetItem", "Query"]
    doctor    = ["BatchGetItem", "DescribeTable", "DescribeTimeToLive", "GetItem", "Query"]
  }
  of_locks = {
    worker    = ["DescribeTable", "Query"]
    committer = ["DescribeTable", "Query"]
    spark     = ["DescribeTable", "GetItem", "Query"]
    doctor    = ["DescribeTable", "DescribeTimeToLive", "Query"]
  }
  lock_keys = concat(["pcaplake doctor *"], [for lake in var.lakes : "s3a://${local.literal[trimprefix(lake, "s3://")]}/*"])
  of_items = concat( # items that are selected by the prefix of their keys
    [
      { role = "worker", sid = "Staged", actions = ["PutItem"], table = var.ledger_table, keys = ["capture#*", "doctor#*", "lakes", "pending#*", "stage#*"] },
      # the doctor tests write permissions on items that never exist
      { role = "doctor", sid = "LedgerProbes", actions = ["ConditionCheckItem", "DeleteItem", "PutItem", "UpdateItem"], table = var.ledger_table, keys = ["doctor#*"] },
    ],
    var.lock_table == null ? [] : [
      { role = "worker", sid = "Entries", actions = ["UpdateItem"], table = var.lock_table, keys = local.lock_keys },
      { role = "committer", sid = "Entries", actions = ["PutItem", "UpdateItem"], table = var.lock_table, keys = local.lock_keys },
      { role = "spark", sid = "Entries", actions = ["PutItem", "UpdateItem"], table = var.lock_table, keys = local.lock_keys },
      { role = "doctor", sid = "LockProbes", actions = ["PutItem", "UpdateItem"], table = var.lock_table, keys = ["pcaplake doctor *"] },
    ],
  )
  if_absent    = { Null = { "s3:if-none-match" = "false" } }
  if_unchanged = { Null = { "s3:if-match" = "false" } }
  of_s3 = {
    worker = {
      Captures = { actions = ["GetObject", "GetObjectVersion"], resources = local.captures }
      Lakes    = { actions = ["GetObject"], resources = local.inside["*"] }
      Files    = { actions = ["AbortMultipartUpload", "PutObject"], resources = flatten([for pattern in local.staged : local.inside[pattern]]) }
      Created = {
        actions   = ["PutObject"]
        resources = flatten([for pattern in ["_pcaplake/stages/*", local.version, "_pcaplake/lake.json", "_pcaplake/doctor/*"] : local.inside[pattern]])
        condition = local.if_absent
      }
      Replaced = { actions = ["PutObject"], resources = local.inside["_pcaplake/doctor/*"], condition = local.if_unchanged }
      Names    = { actions = ["ListBucket"], resources = concat(local.capture_buckets, local.lake_buckets) }
    }
    committer = {
      Captures   = { actions = ["GetObject", "GetObjectVersion"], resources = local.captures }
      Lakes      = { actions = ["GetObject"], resources = local.inside["*"] }
      Files      = { actions = ["AbortMultipartUpload", "PutObject"], resources = flatten([for pattern in concat(local.staged, local.committed) : local.inside[pattern]]) }
      Created    = { actions = ["PutObject"], resources = flatten([for pattern in ["_pcaplake/*", local.version] : local.inside[pattern]]), condition = local.if_absent }
      Replaced   = { actions = ["PutObject"], resources = flatten([for pattern in ["_pcaplake/lake.json", "_pcaplake/doctor/*"] : local.inside[pattern]]), condition = local.if_unchanged }
      ExpiredLog = { actions = ["DeleteObject"], resources = local.inside["*/_delta_log/*"] }
      Names      = { actions = ["ListBucket"], resources = concat(local.capture_buckets, local.lake_buckets) }
    }
    spark = {
      Tables  = { actions = ["AbortMultipartUpload", "DeleteObject", "GetObject", "PutObject"], resources = local.inside["*"] }
      Names   = { actions = ["GetBucketLocation", "ListBucket"], resources = local.lake_buckets }
      Records = { actions = ["DeleteObject", "PutObject"], resources = flatten([for pattern in local.records : local.inside[pattern]]), effect = "Deny" }
      Stages  = { actions = ["DeleteObject"], resources = flatten([for pattern in ["_pcaplake/stages/*", "_pcaplake/swaps/*"] : local.inside[pattern]]), effect = "Deny" }
    }
    operator = {
      LakeJson = { actions = ["GetObject"], resources = local.inside["_pcaplake/lake.json"] }
      Names    = { actions = ["ListBucket"], resources = concat(local.capture_buckets, local.lake_buckets) }
    }
    doctor = {
      Captures = { actions = ["GetObject"], resources = [for place in local.below : "${place}_pcaplake/doctor"] }
      Lakes    = { actions = ["GetObject"], resources = local.inside["*"] }
      Clock    = { actions = ["PutObject"], resources = local.inside["_pcaplake/clock"] }
      Probes   = { actions = ["DeleteObject", "PutObject"], resources = local.inside["_pcaplake/doctor/*"] }
      Names    = { actions = ["ListBucket"], resources = concat(local.capture_buckets, local.lake_buckets) }
    }
  }

  statements = {
    for role in ["worker", "committer", "spark", "operator", "doctor"] : role => concat(
      [for actions in [lookup(local.of_queue, role, [])] : { sid = "Queue", effect = "Allow", service = "sqs", actions = actions, resources = [local.queue_arn] }],
      [for actions in [lookup(local.of_dead_letters, role, [])] : { sid = "DeadLetters", effect = "Allow", service = "sqs", actions = actions, resources = [local.dead_arn] }],
      [for sid, one in local.of_s3[role] : { sid = sid, effect = lookup(one, "effect", "Allow"), service = "s3", actions = one.actions, resources = one.resources, condition = lookup(one, "condition", null) }],
      [for actions in [lookup(local.of_ledger, role, [])] : { sid = "Ledger", effect = "Allow", service = "dynamodb", actions = actions, resources = ["${local.table_arn}${var.ledger_table}"] }],
      [for actions in [lookup(local.of_locks, role, [])] : { sid = "Locks", effect = "Allow", service = "dynamodb", actions = actions, resources = ["${local.table_arn}${coalesce(var.lock_table, "-")}"] } if var.lock_table != null],
      [
        for one in local.of_items : {
          sid       = one.sid, effect = "Allow", service = "dynamodb", actions = one.actions, resources = ["${local.table_arn}${one.table}"]
          condition = { "ForAllValues:StringLike" = { "dynamodb:LeadingKeys" = sort(distinct(one.keys)) } }
        } if one.role == role
      ],
      role == "doctor" ? [{ sid = "OldestMessage", effect = "Allow", service = "cloudwatch", actions = ["GetMetricStatistics"], resources = ["*"] }] : [],
    )
  }

  # The shortest of several prefixes in a bucket covers the others. A filter ends before the first character that S3 requires encoded.
  prefixes = {
    for bucket in distinct([for place in var.places : place.bucket]) : bucket =>
    distinct([for place in var.places : regex("^[A-Za-z0-9!_.'()/-]*", place.prefix) if place.bucket == bucket])
  }
}
