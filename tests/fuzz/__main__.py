"""`python -m tests.fuzz`: see fuzz_capture.py."""

from .fuzz_capture import main

main()
