"""What a step takes, estimated from its jaxpr alone: no device, no compiler, any mesh, in a second.

What XLA does with a program, which the room `program` reads, is repeated in outline:

    _propagation.py               which axes of the mesh split each value
    _traffic.py                   what devices exchange for it, by the shares of the work in _shares.py;
                                  sums over devices wait in _sums.py
    _schedule.py                  in which order it is all done
    _buffers.py, _liveness.py     which values are ever in memory, and when
    _traced.py                    all of it together
"""

from meshwright.plan._estimate._traced import TracedCosts, TracedMemory, Work, traced_costs

__all__ = ["TracedCosts", "TracedMemory", "Work", "traced_costs"]
