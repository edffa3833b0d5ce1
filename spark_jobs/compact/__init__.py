"""Compaction: small files of a partition are merged, in Z-order on request."""
