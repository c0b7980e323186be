"""How XLA compiles for tests: quickly, since a test runs a program once or a few times, and never twice."""

from importlib.metadata import version
from pathlib import Path

COMPILED = Path(__file__).parents[1] / ".compiled"
"""Where JAX keeps what it has compiled for tests."""

# XLA's older generator of fused loops takes a fourth of the time; newer releases have none, nor the flag.
_OLDER = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
_LOOPS = " --xla_cpu_use_fusion_emitters=false" if _OLDER else ""

# XLA splits a product or convolution over the threads in which the virtual devices wait for each other in
# collectives. On two cores there are eight: a step of forty layers stood still within twenty steps. And on a
# machine with much to do, a device may come to a collective later than the 40 s after which XLA aborts.
_ALIVE = " --xla_cpu_multi_thread_eigen=false --xla_cpu_collective_call_terminate_timeout_seconds=200"

QUICK = "--xla_backend_optimization_level=0" + _LOOPS + _ALIVE
"""For a few steps: no time is spent on faster code."""

FAST = "--xla_backend_optimization_level=1" + _LOOPS + _ALIVE
"""For a hundred steps: their code is three times as fast, and still compiled in half the time of a user's."""
