"""SQL on a lake: its tables in DuckDB, on one machine, from folders and from S3."""
