"""`python -m bench`: the benchmark of the main job."""

from .ingest import main

main()
