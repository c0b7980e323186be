"""The step of an experiment compiled ahead of time, with the memory and operations that it takes."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax

from meshwright.base._internal import PyTree, documented, human_bytes, mesh_words, tree
from meshwright.engine._experiment._auto import Planner, settled
from meshwright.engine._experiment._experiment import Experiment
from meshwright.engine._experiment._parts import Parts, data_of, mesh_of, on_hardware
from meshwright.errors import MeshwrightError
from meshwright.parallel._internal import Layout, device_bytes, make_mesh
from meshwright.program._internal import count_flops


@documented
@dataclass(frozen=True)
class AheadOfTime:
    """A compiled step, with its memory and its operations on one device, as XLA reports them."""

    compiled: jax.stages.Compiled
    """The compiled function, `(state, batch) -> (state, metrics)`."""
    mesh: Mapping[str, int]
    """The size of each mesh axis."""
    seconds: float
    """Seconds that tracing and compiling took."""
    state_bytes: int
    """Bytes of the state."""
    batch_bytes: int
    """Bytes of the device's part of a batch."""
    temporary_bytes: int
    """Bytes of temporary memory while the step runs, mostly activations."""
    peak_bytes: int
    """The sum of all. The new state counts once if XLA writes it over the old one."""
    flops: float
    """Floating-point operations of one device, recomputed ones included: its share of what `program.flops`
    counts for the whole step."""
    bytes_accessed: float | None
    """Bytes read from memory and written to it. XLA counts the body of a loop once. None if it does not
    report them."""

    def __str__(self) -> str:
        axes = mesh_words(self.mesh)
        sizes = f"state {human_bytes(self.state_bytes)}, batch {human_bytes(self.batch_bytes)}, "
        sizes += f"temporary {human_bytes(self.temporary_bytes)}, peak {human_bytes(self.peak_bytes)}"
        sizes += f"; {self.flops:.3g} FLOP"
        return f"step compiled in {self.seconds:.1f} s for mesh {axes}. Per device: {sizes}"


def compile_ahead(
    experiment: Experiment, planner: Planner, devices: Sequence[jax.Device] | None = None
) -> AheadOfTime:
    """Compile the step of a run; `mw.plan.compile_ahead` is this function with the planner of `plan`."""
    experiment = on_hardware(experiment, devices)
    mesh, rows = mesh_of(experiment, devices), some_rows(experiment)
    return compile_parts(settled(experiment, mesh, rows, planner, reuse=False).parts)


def compile_parts(parts: Parts) -> AheadOfTime:
    """Compile the step of a run's parts."""
    started = time.perf_counter()
    compiled = parts.step.compile(parts.target, parts.batch)
    seconds = time.perf_counter() - started
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
        # XLA counts a buffer that it writes over as an argument and as an output, so it is subtracted once.
        peak_bytes=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
        flops=count_flops(parts.step.jaxpr).hardware / parts.layout.mesh.size,
        bytes_accessed=cost.get("bytes accessed"),
    )


def some_rows(experiment: Experiment) -> PyTree:
    """Return some examples of a batch, of the largest shape. They are read for one device of this process."""
    layout = Layout(make_mesh("data=1", jax.local_devices()[:1]))
    data = data_of(experiment, layout.batch_sharding)
    try:
        return max([data.peek(), *data.shapes()], key=_example_bytes)
    finally:
        data.close()


def _example_bytes(rows: PyTree) -> int:
    return sum(math.prod(x.shape[1:]) * x.dtype.itemsize for x in jax.tree.leaves(tree.abstract(rows)))
