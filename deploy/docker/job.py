"""The script for spark-submit: `/app/job.py compact --lake ...`. It runs the jobs of the installed package."""

import sys

from pcaplake.spark_jobs.__main__ import main

sys.exit(main())
