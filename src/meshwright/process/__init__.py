"""The processes of a run: who they are, how they come together, agree, hold a directory, stop and leave.

cluster = process.start()                  # before anything touches a device
with process.signals() as signals:
    for step in range(1, steps + 1):
        ...
        if signals.stop(step):             # the same answer on all processes
            break
"""

from meshwright.process._agree import agree, barrier, gather, is_lead
from meshwright.process._cluster import Cluster
from meshwright.process._detect import detect
from meshwright.process._disk import is_shared
from meshwright.process._hold import Hold, hold, hold_run, is_held
from meshwright.process._leave import abandon
from meshwright.process._roll_call import roll_call
from meshwright.process._signals import Signals, signals
from meshwright.process._slurm import expand_nodes
from meshwright.process._start import start
from meshwright.process._together import on_lead, together

__all__ = [
    "Cluster",
    "Hold",
    "Signals",
    "abandon",
    "agree",
    "barrier",
    "detect",
    "expand_nodes",
    "gather",
    "hold",
    "hold_run",
    "is_held",
    "is_lead",
    "is_shared",
    "on_lead",
    "roll_call",
    "signals",
    "start",
    "together",
]
