"""PySpark jobs on a lake's tables, safe beside running workers: compaction, vacuum, backfill, replace, signals, quality."""
