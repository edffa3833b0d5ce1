"""The functions of SOME/IP payloads that numba compiles. They know bytes and a table of integers, and no description."""
