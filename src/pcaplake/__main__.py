"""`python -m pcaplake` runs the command line `pcaplake`."""

from __future__ import annotations

from pcaplake.worker.__main__ import main

if __name__ == "__main__":
    main()
