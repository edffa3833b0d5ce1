"""What spark-submit is given: `/app/job.py compact --lake ...`. The jobs are in the package, wherever that is."""

import sys

from spark_jobs.__main__ import main

sys.exit(main())
