"""The costs of a step, estimated from its jaxpr alone: no device, no compiler, any mesh, in a second.

The files repeat in outline the work of XLA on a program (see the package `program`):

    _propagation.py               the mesh axes that split each value
    _traffic.py                   the collectives; _sums.py delays sums over devices
    _schedule.py                  the order of operations
    _buffers.py, _liveness.py     the values that are stored in memory, and when
    _traced.py                    all of it together
"""
