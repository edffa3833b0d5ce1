"""The committer: stages become batches, and each batch becomes one Delta transaction per table."""
