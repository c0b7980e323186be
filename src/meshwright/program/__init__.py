"""Traced and compiled programs, read: operations, FLOPs, lookups, and communication.

_program, _primitives, …   a jaxpr as a list of operations, and the table of primitives
_flops, _utilisation       floating-point operations, and their share of the devices' peak
_hlo/                      compiled programs as files, with their memory traffic and communication
"""
