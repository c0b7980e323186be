"""Programs in one file, by `jax.export`, which run without Meshwright on other machines and devices.

`export` writes a function with its weights, and `load_program` reads it with its checks. The bytes of the
file are described in `_file`.
"""
