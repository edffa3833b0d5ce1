"""What pcaplake does with Kubernetes: the deletion cost of its own pod, an election by Lease, Spark's jobs on schedule.

Needs the extra `cluster`, and is imported only where it is asked for. Nothing here guards data: a row is in a table once
because of the ledger and the log, whatever a Lease says. So every failure here costs time or order, never rows.
"""
