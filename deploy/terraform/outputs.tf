output "queue_url" {
  description = "URL of the queue."
  value       = aws_sqs_queue.captures.url
}

output "role_arns" {
  description = "ARNs of the IAM roles, by pcaplake role."
  value       = { for role, one in aws_iam_role.this : role => one.arn }
}

output "helm_values" {
  description = "Values for the chart. If you use this configuration as a module, add to the root module: output \"helm_values\" { value = module.pcaplake.helm_values }. Then run: terraform output -raw helm_values > values.yaml. Add routes yourself. Without a lock table, disable spark.compact and spark.vacuum."
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
