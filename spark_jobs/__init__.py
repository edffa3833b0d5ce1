"""PySpark jobs on a lake's tables, safe while workers run: compaction, vacuum, backfill, replace, signals, quality."""
