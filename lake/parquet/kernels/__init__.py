"""The kernels of the Parquet writer: encodings of integers, and Zstandard frames of literals.

They know arrays of integers and bytes, but neither pages nor Arrow. All of them release the GIL.
"""
