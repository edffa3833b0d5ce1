"""`python -m worker` is `pcaplake`."""

from .cli import main

main()
