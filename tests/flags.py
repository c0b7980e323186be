"""The flags by which XLA compiles for tests: quickly, since a test runs a program once or a few times."""

from importlib.metadata import version

QUICK = "--xla_backend_optimization_level=0"
"""No time is spent on faster code."""

if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    # XLA's older generator of fused loops takes a fourth of the time; newer releases have none, nor the flag.
    QUICK += " --xla_cpu_use_fusion_emitters=false"
