output "queue_url" {
  description = "URL of the queue."
  value       = aws_sqs_queue.captures.url
}

output "role_arns" {
  description = "IAM roles by role of pcaplake."
  value       = { for role, one in aws_iam_role.this : role => one.arn }
}

output "helm_values" {
  description = "Values for the chart. Where this is a module, the root must give it on: output \"helm_values\" { value = module.pcaplake.helm_values }; then terraform output -raw helm_values > values.yaml. Routes are yours to add; without a lock table switch spark.compact and spark.vacuum off."
  value = yamlencode({
    settings = merge(
      {
        queue        = aws_sqs_queue.captures.name
        region       = var.region
        ledger_table = aws_dynamodb_table.this["ledger"].name
        log_store    = var.lock_table == null ? "put-if-absent" : "dynamodb"
      },
      length(var.lakes) == 1 ? { lake = var.lakes[0] } : {},
      var.lock_table == null ? {} : { lock_table = var.lock_table },
    )
    identity        = { kind = var.identity.kind }
    committer       = { separate = var.separate_committer }
    reconcile       = { args = concat(["--announce"], [for one in var.places : "s3://${one.bucket}/${one.prefix}"]) }
    serviceAccounts = { for role, one in aws_iam_role.this : role => { name = local.accounts[role], roleArn = one.arn } }
  })
}
