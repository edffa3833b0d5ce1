"""`pcaplake setup`: DynamoDB tables, queue, notifications and IAM policies of a fleet."""
