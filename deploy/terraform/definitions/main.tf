# Defines queues, tables, policies and notifications as data, without a provider or resources. `terraform apply` in this folder
# creates nothing and prints all definitions. definitions.json.tftpl is generated from what `pcaplake setup` creates
# (tools/terraform.py), and a test compares the results.

locals {
  bucket_arn   = "arn:${var.partition}:s3:::"
  dead_letters = var.dead_letters == null ? "${var.queue}-dead" : var.dead_letters

  definitions = jsondecode(templatefile("${path.module}/definitions.json.tftpl", {
    partition    = var.partition
    region       = var.region
    account      = var.account
    queue        = var.queue
    dead_letters = local.dead_letters
    ledger_table = var.ledger_table
    lock_table   = coalesce(var.lock_table, "-")
    data_files   = var.partition_column == null ? "*-*.parquet" : "*/${coalesce(var.partition_column, "-")}=*"
  }))
  without_locks = var.lock_table == null ? ["Locks", "Entries", "LockProbes"] : [] # statements that are left out

  # IAM treats `*`, `?` and `$` as special characters; `$${*}`, `$${?}` and `$${$}` match them literally
  literal = {
    for text in concat([for place in var.places : place.prefix], [for lake in var.lakes : trimprefix(lake, "s3://")]) :
    text => join("", [for letter in split("", text) : contains(["$", "*", "?"], letter) ? "$${${letter}}" : letter])
  }
  lakes = [for lake in var.lakes : { whole = local.literal[trimprefix(lake, "s3://")], bucket = split("/", trimprefix(lake, "s3://"))[0] }]

  # pattern => what it stands for, for each lake or each place with captures
  expanded = {
    for pattern in distinct(flatten([
      for policy in local.definitions.policies : [for one in policy.Statement : concat(one.Resource, try(one.Condition["ForAllValues:StringLike"]["dynamodb:LeadingKeys"], []))]
    ])) :
    pattern => distinct(
      strcontains(pattern, "{lake}") ? [for lake in local.lakes : replace(pattern, "{lake}", endswith(pattern, ":{lake}") ? lake.bucket : lake.whole)] :
      strcontains(pattern, "{bucket}") ? [for place in var.places : replace(replace(pattern, "{bucket}", place.bucket), "{prefix}", local.literal[place.prefix])] :
      [pattern]
    )
  }

  # The shortest of several prefixes in a bucket covers the others. A filter ends before the first character that S3 requires encoded.
  prefixes = {
    for bucket in distinct([for place in var.places : place.bucket]) : bucket =>
    distinct([for place in var.places : regex("^[A-Za-z0-9!_.'()/-]*", place.prefix) if place.bucket == bucket])
  }
}
