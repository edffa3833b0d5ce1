"""Tables that are made from other tables: which rows of these have changed since the last run, and the position of a run.

A table that is made from others is a function of what these hold now. Whoever changes them, and in whatever way (a batch, a
RESTORE, a DELETE, `ingest --reread`), the next run finds the rows that may differ in the log, and makes them again.
"""
