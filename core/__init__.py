"""The compiled kernels: modules that the build makes from the packages `kernels` of parser, signals and worker (setup.py)."""
