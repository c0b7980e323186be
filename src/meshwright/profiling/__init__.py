"""What a run's time and memory go to."""

from meshwright.profiling._trace import Trace, tracer

__all__ = ["Trace", "tracer"]
