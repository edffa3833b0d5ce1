"""PySpark jobs on a lake's tables, safe beside the workers: compaction, vacuum, backfill, signals, quality.

May import `worker` and `parser`; nothing imports it but its own jobs.
"""
