"""Readings of this machine and its devices: memory, use, temperature, clocks, errors and traffic.

`_host` reads `/proc`, `_nvidia` asks NVIDIA's management library, `_tpu` that of TPUs. `_reader` adds what
JAX knows of the memory of devices, puts all together, and makes rates of counts. Nothing here keeps a thread
or talks to other machines. To add a source, add a file with a function that returns numbers by name, and name
it in `_reader`.
"""
