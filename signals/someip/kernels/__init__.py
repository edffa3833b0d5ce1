"""The kernels of SOME/IP payloads. They know bytes and a table of integers, and no description."""
