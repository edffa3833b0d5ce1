"""Compaction: small and unsorted files of a partition become large sorted ones, written by the encoder of all other files."""
