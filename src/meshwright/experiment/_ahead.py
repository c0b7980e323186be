"""The step of an experiment compiled ahead of time: what it takes of a device, before there is a state."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax

from meshwright import tree
from meshwright.docstrings import documented
from meshwright.errors import MeshwrightError
from meshwright.experiment._experiment import Experiment
from meshwright.experiment._parts import Parts, data_of, mesh_of, on_hardware, parts_of
from meshwright.program import count_flops
from meshwright.sharding import Layout, device_bytes, make_mesh
from meshwright.shown import human_bytes
from meshwright.tree import PyTree


@documented
@dataclass(frozen=True)
class AheadOfTime:
    """A compiled step and what XLA says of it, in bytes and operations of one device."""

    compiled: jax.stages.Compiled
    """`(state, batch) -> (state, metrics)`."""
    mesh: Mapping[str, int]
    """The size of each axis."""
    seconds: float
    """Seconds that tracing and compiling took."""
    state_bytes: int
    """The state, which stays from step to step."""
    batch_bytes: int
    """The batch."""
    temporary_bytes: int
    """Bytes of temporary memory while the step runs, mostly activations."""
    peak_bytes: int
    """All of it together. The new state is written over the old one, where XLA says so, and counts once."""
    flops: float
    """Floating-point operations, recomputed ones included: of what `program.flops` counts of the whole step
    the share of a device."""
    bytes_accessed: float | None
    """Bytes read from memory and written to it, as XLA counts them: of a loop's body once. None where it does
    not say."""

    def __str__(self) -> str:
        axes = " × ".join(f"{axis} {size}" for axis, size in self.mesh.items())
        sizes = f"state {human_bytes(self.state_bytes)}, batch {human_bytes(self.batch_bytes)}, "
        sizes += f"temporary {human_bytes(self.temporary_bytes)}, peak {human_bytes(self.peak_bytes)}"
        sizes += f"; {self.flops:.3g} FLOP"
        return f"step compiled in {self.seconds:.1f} s for mesh {axes}. Per device: {sizes}"


def compile_ahead(experiment: Experiment, devices: Sequence[jax.Device] | None = None) -> AheadOfTime:
    """Compile the step as a run on `devices` would, with no array of the state in memory.

    Args:
      devices: all of this process if left out. They may be ones to compile for only, as
        `jax.experimental.topologies` describes them: none of them is used.

    Raises: as `run` does before it starts.
    """
    experiment = on_hardware(experiment, devices)
    return compile_parts(parts_of(experiment, mesh_of(experiment, devices), some_rows(experiment)))


def compile_parts(parts: Parts) -> AheadOfTime:
    """Compile the step of a run's parts.

    Raises:
      UsageError, LayoutError: as `Step.compile`.
      MeshwrightError: the compiler does not say what memory it takes.
    """
    started = time.perf_counter()
    compiled = parts.step.compile(parts.target, parts.batch)
    return _told(compiled, parts, time.perf_counter() - started)


def some_rows(experiment: Experiment) -> PyTree:
    """Return rows to train on, read for one device of this process: others may not be here."""
    here = Layout(make_mesh("data=1", jax.local_devices()[:1]))
    data = data_of(experiment, here.batch_sharding)
    try:
        return max([data.peek(), *data.shapes()], key=_example_bytes)  # the shape that takes most
    finally:
        data.close()


def _example_bytes(rows: PyTree) -> int:
    return sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in jax.tree.leaves(tree.abstract(rows)))


def _told(compiled: jax.stages.Compiled, parts: Parts, seconds: float) -> AheadOfTime:
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    if memory is None:
        raise MeshwrightError("the compiler of these devices does not say what memory a program takes.")
    return AheadOfTime(
        compiled=compiled,
        mesh=dict(parts.layout.mesh.shape),
        seconds=seconds,
        state_bytes=sum(device_bytes(x, x.sharding) for x in jax.tree.leaves(parts.target)),
        batch_bytes=tree.nbytes(parts.batch) // parts.layout.batch_ways,
        temporary_bytes=memory.temp_size_in_bytes,
        peak_bytes=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
        flops=count_flops(parts.step.jaxpr).hardware / parts.layout.mesh.size,
        bytes_accessed=cost.get("bytes accessed"),
    )
