"""Imported once, before processes are copied: all modules of `ingest`, and all kernels in memory. Starts no thread.

numba loads a kernel when it is called first. Without this, hundreds of processes would take more than a second for it.
"""

from __future__ import annotations

from pcaplake.worker import warm

warm.warm()
assert warm.is_warm()  # this also compiles the program of the default profile, which most processes need
