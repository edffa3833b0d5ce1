"""Programs for developers of pcaplake. The package itself does not use them."""

ROOMS = ("parser", "signals", "common", "lake", "ingest", "derived", "worker", "spark_jobs")
"""The folders with the sources of pcaplake, the lowest first; `core` has what is compiled."""
