"""`python -m spark_jobs.signals`, and what spark-submit is given."""

from __future__ import annotations

from spark_jobs.signals import main

if __name__ == "__main__":
    main()
