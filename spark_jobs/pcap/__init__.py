"""The Spark data source `pcap`, for batch and streaming reads."""
