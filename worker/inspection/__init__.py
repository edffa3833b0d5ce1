"""Describes captures without a lake: what `pcaplake inspect` reports."""
