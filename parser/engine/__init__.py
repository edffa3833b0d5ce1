"""The decode engine: protocol declarations compiled to integer tables, and the kernels that run them over bytes."""
