"""Compiles the kernels when pcaplake is built: writes Cython source from the Python functions and from the walk of the program
of all tables (docs/adr/0045-kernels-are-compiled-with-the-wheel.md).
"""
