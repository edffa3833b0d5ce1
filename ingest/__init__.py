"""From a capture to a stage: open it, decode it, write Parquet files, record the stage in the ledger."""
