"""Kubernetes support: the deletion cost of a worker's pod, leader election with a Lease, and Spark Jobs on a schedule.

Needs the extra `cluster`, and is imported only where it is used. Nothing here protects data: the ledger and the Delta log
commit each row once, whatever a Lease says. A failure here can cost time or order, but never rows.
"""
