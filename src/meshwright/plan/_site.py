"""An experiment on some hardware: its parts, its traced step and its compiled step."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import jax
from jax.sharding import Mesh

from meshwright.base._internal import PyTree, collector_paused, human_bytes, nbytes
from meshwright.engine._internal import Experiment, Parts, as_casts, compile_parts, errors_naming, parts_of
from meshwright.errors import MeshwrightError, UsageError
from meshwright.parallel._internal import (
    device_bytes,
    group_parts,
    grouped_mesh,
    make_mesh,
    mesh_rule,
    num_stages,
)
from meshwright.plan._chips import Chip, Gpu, Tpu
from meshwright.plan._estimate._traced import TracedCosts, traced_costs
from meshwright.plan._hardware import CPU, Hardware
from meshwright.plan._measured import measured_rates
from meshwright.plan._roofline import Rates, StepTime, published_rates, step_time
from meshwright.plan._topology import described_devices
from meshwright.plan._traces import Traces
from meshwright.plan._values import CheckpointCost, Exchange, Memory, Plan, checkpoint_cost
from meshwright.program._internal import Collective, Flops, collectives, utilisation_on
from meshwright.training._internal import OneForwardOneBackward, Ring

# The share of a GPU's memory from which on XLA computes values again: 95 % of 80 %, `base_limit` in its
# xla/service/gpu/gpu_hlo_schedule.cc.
_AMPLE = 0.76
_TRITON, _NO_TILES = "xla_gpu_enable_triton_gemm", "Couldn't find output tile sizes"
_NOT_TRITON = (
    f"compiled with {_TRITON}=False: XLA's compiler, without a GPU to try it on, finds no tiles for some "
    "product of this step."
)


@dataclass(frozen=True)
class Compiled:
    """Facts about a compiled step that a plan needs."""

    collectives: Sequence[Collective]
    """Collectives of the program, for one device."""
    temporary_nbytes: int
    """Bytes in one device's memory while the step runs, besides the state and the batch."""
    notes: Sequence[str] = ()
    """Sentences about how it was compiled."""


def compiled_from(document: Mapping[str, Any]) -> Compiled:
    """Return the `Compiled` that was written as JSON from `dataclasses.asdict`."""
    # JSON has no tuples.
    collectives = [Collective(**x | {"axes": tuple(x["axes"])}) for x in document["collectives"]]
    return Compiled(collectives, document["temporary_nbytes"], document["notes"])


class NotCompiledError(MeshwrightError):
    """The compiler of the hardware did not compile the step.

    Attributes:
      too_large: True if the compiler found that the device's memory is too small.
    """

    def __init__(self, why: str):
        super().__init__(why)
        self.too_large = "RESOURCE_EXHAUSTED" in why


@dataclass(frozen=True)
class Site:
    """An experiment and the hardware that it would run on."""

    experiment: Experiment
    """The experiment, changed as its mesh rules say for this hardware."""
    hardware: Hardware
    """The hardware."""
    rows: PyTree
    """A few training examples; their shapes and dtypes are used."""
    given_rates: Rates | None
    """Speeds of one device, if the caller gave them; otherwise they are looked up or measured."""
    bandwidth: float
    """Bytes per second that one host writes of a checkpoint."""
    traces: Traces = field(default_factory=Traces, repr=False, compare=False)
    """Traced steps, shared by sites that `dataclasses.replace` makes of this one."""

    @property
    def rates(self) -> Rates:
        """Speeds of one device; those of CPUs are measured at the first access, which takes seconds."""
        return self.given_rates or rates_of(self.hardware)

    @cached_property
    def parts(self) -> Parts:
        """The parts of a run on an abstract mesh."""
        with _naming_cudnn():
            return self.traces.parts(self.experiment, self._mesh(self.hardware.num_devices), self.rows)

    @cached_property
    def jaxpr(self) -> Any:
        """The jaxpr of the traced step."""
        with _naming_cudnn():
            return self.traces.jaxpr(self.experiment, self.parts, self.rows)

    @cached_property
    def traced(self) -> TracedCosts:
        """Costs of the step, estimated from its jaxpr."""
        return _costs_on(self.hardware.chip, self.jaxpr, self.parts)

    @property
    def ruled(self) -> list[str]:
        """A note about settings that a mesh rule changes, as they win over the command line; or none."""
        rule = mesh_rule(self.experiment.mesh_rules, str(self.hardware))
        if rule is None or not rule[1].changes:
            return []
        return [f"the mesh rule {rule[0]!r} sets {', '.join(rule[1].changes)} here: change that there."]

    def compile(self) -> Compiled:
        """Compile the step with the compiler of the hardware."""
        try:
            return self._compiled(self.experiment)
        except jax.errors.JaxRuntimeError as error:
            if _NO_TILES not in str(error) or _TRITON in self.experiment.compile.options:
                raise NotCompiledError(str(error).partition("\n")[0]) from error
        return self._compiled_without_triton()

    def _compiled_without_triton(self) -> Compiled:
        settings = self.experiment.compile
        settings = replace(settings, options={**settings.options, _TRITON: False})
        try:
            compiled = self._compiled(replace(self.experiment, compile=settings))
        except jax.errors.JaxRuntimeError as error:
            raise NotCompiledError(str(error).partition("\n")[0]) from error
        return replace(compiled, notes=(_NOT_TRITON,))

    def _compiled(self, experiment: Experiment) -> Compiled:
        parts = parts_of(experiment, self._mesh(described_devices(self.hardware)), self.rows)
        ahead = compile_parts(parts)
        text = ahead.compiled.as_text() or ""
        return Compiled(collectives(text, parts.layout.mesh), ahead.temporary_bytes)

    def plan(self, compiled: Compiled | None = None) -> Plan:
        """Return the plan, of the compiled step if it is given, otherwise estimated from the traced step."""
        collectives = self.traced.collectives if compiled is None else compiled.collectives
        counted = self.traced.flops
        time, exchanges = self._time(collectives), _exchanges(collectives, self._split_over_groups()[0])
        num_params = sum(x.size for x in jax.tree.leaves(self.parts.target.params))
        return Plan(
            hardware=str(self.hardware),
            num_devices=self.hardware.num_devices,
            mesh=dict(self.parts.layout.mesh.shape),
            settings=_settings(self.experiment),
            compiled=compiled is not None,
            num_params=num_params,
            memory=self._memory(compiled),
            exchanges=exchanges,
            model_flops=counted.model,
            hardware_flops=counted.hardware,
            time=time,
            mfu=_mfu(counted, time, self.hardware),
            assumptions=self.rates.source,
            checkpoint=self._checkpoint(),
            pipeline=_schedule(self.experiment, self.parts.layout.mesh),
            notes=(
                *(() if compiled is None else compiled.notes),
                *self.ruled,
                *_not_counted(counted),
                *_taken_whole(self.traced.not_understood),
                *_masked(self.traced, is_compiled=compiled is not None),
                *_lost_splits(exchanges, self._batch_axes, int(self.experiment.microbatches) * num_params),
            ),
        )

    def _mesh(self, devices: Sequence[jax.Device] | int) -> Mesh:
        hardware, shape = self.hardware, self.experiment.mesh
        with errors_naming("mesh"):
            if not isinstance(devices, int) and isinstance(hardware.chip.target, Tpu):
                # Mesh axes follow the torus.
                return make_mesh(shape, devices)
            groups = hardware.num_mesh_groups if ";" in shape else hardware.num_groups
            return grouped_mesh(shape, groups, devices)

    def _split_over_groups(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return the sizes of mesh axes over groups of devices with fast links, and inside a group."""
        if self.hardware.num_groups == 1:
            return {}, self.parts.layout.mesh.shape
        return group_parts(self.experiment.mesh, self.hardware.num_groups, self.hardware.num_devices)

    def _time(self, collectives: Sequence[Collective]) -> StepTime:
        over, inside = self._split_over_groups()
        unfused = self.traced.attention_nbytes if self.rates.attention is None else 0
        state_on_host = 2 * _bytes_of(self.parts.target, on_host=True)
        return step_time(
            self.traced.products,
            self.traced.other_nbytes + unfused,
            collectives,
            self.rates,
            inside=inside,
            over=over,
            batch_axes=self._batch_axes,
            kept_on_host=self.traced.host_nbytes - state_on_host // 2,
            state_on_host=state_on_host,
        )

    @property
    def _batch_axes(self) -> frozenset[str]:
        return frozenset(jax.tree.leaves(tuple(self.parts.layout.batch_sharding.spec)))

    def _memory(self, compiled: Compiled | None) -> Memory:
        target, traced = self.parts.target, self.traced
        params, optimizer, state = map(_bytes_of, (target.params, target.opt_state, target))
        temporary = traced.memory.temporary if compiled is None else compiled.temporary_nbytes
        gradients = min(traced.memory.gradients, temporary)
        return Memory(
            params=params,
            optimizer=optimizer,
            other_state=state - params - optimizer,
            batch=nbytes(self.parts.batch) // self.parts.layout.batch_ways,
            gradients=gradients,
            temporary=temporary - gradients,
            available=self.hardware.chip.memory_bytes,
        )

    def _checkpoint(self) -> CheckpointCost:
        save = self.experiment.save
        hosts, casts = self.hardware.num_hosts, as_casts(save.cast)
        return checkpoint_cost(self.parts.target, casts, hosts, self.bandwidth, save.names)


def _costs_on(chip: Chip, jaxpr: Any, parts: Parts) -> TracedCosts:
    is_tpu, is_gpu = (isinstance(chip.target, kind) for kind in (Tpu, Gpu))
    ample = _AMPLE * chip.memory_bytes if is_gpu else math.inf
    with collector_paused():
        return traced_costs(jaxpr, parts.target, parts.layout, ragged_kernel=is_tpu, ample_nbytes=ample)


@contextmanager
def _naming_cudnn() -> Iterator[None]:
    """Say what to do about a model that calls cuDNN's attention where JAX finds no cuDNN to trace it with."""
    try:
        yield
    except RuntimeError as error:
        if "cuDNN" not in str(error):
            raise
        raise UsageError(
            f"the model calls jax.nn.dot_product_attention(implementation='cudnn'), and JAX says {error}\n"
            "  Call mw.nn.attention, which takes cuDNN's kernel on GPUs, whose plan needs no cuDNN. Or "
            "install nvidia-cudnn-cu13, nvidia-cublas and meshwright[cuda13] here."
        ) from error


@cache
def rates_of(hardware: Hardware) -> Rates:
    """Return the speeds of one device: measured for CPUs, from the data sheet for all others."""
    if hardware.chip.name == CPU:
        return measured_rates(described_devices(hardware))
    return published_rates(hardware.chip)


def _bytes_of(arrays: PyTree, *, on_host: bool = False) -> int:
    """Return the bytes of one device's parts of structs, of those in its memory or of those in the host's."""
    leaves = (
        x for x in jax.tree.leaves(arrays) if (x.sharding.memory_kind not in (None, "device")) == on_host
    )
    return sum(device_bytes(x, x.sharding) for x in leaves)


def _exchanges(collectives: Sequence[Collective], over: Mapping[str, int]) -> tuple[Exchange, ...]:
    """Return collectives grouped by kind and axes, those that send most first."""
    together: dict[tuple[str, tuple[str, ...]], list[Collective]] = defaultdict(list)
    for collective in collectives:
        together[collective.kind, collective.axes].append(collective)
    exchanges = (
        Exchange(
            kind=kind,
            axes=axes,
            times=sum(x.times for x in alike),
            sent_bytes=sum(x.times * x.sent_nbytes for x in alike),
            crosses_groups=any(over.get(axis, 1) > 1 for axis in axes),
        )
        for (kind, axes), alike in together.items()
    )
    return tuple(sorted(exchanges, key=lambda exchange: -exchange.sent_bytes))


def _schedule(experiment: Experiment, mesh: Mesh) -> Ring | OneForwardOneBackward | None:
    stages = num_stages(mesh.shape)
    if stages == 1:
        return None
    if experiment.pipeline_schedule == "1f1b":
        return OneForwardOneBackward(stages, int(experiment.microbatches))
    return Ring(stages, int(experiment.microbatches), experiment.pipeline_rounds)


def _settings(experiment: Experiment) -> dict[str, object]:
    return {
        "batch_size": experiment.input.batch_size,
        "microbatches": experiment.microbatches,
        "remat": experiment.remat,
        "compute_dtype": experiment.compute_dtype,
    }


def _mfu(counted: Flops, time: StepTime, hardware: Hardware) -> float | None:
    if not time.seconds:
        return None
    shares = utilisation_on(counted, 1 / time.seconds, hardware.chip.device_kind, hardware.num_devices)
    return shares.get("mfu")


def _not_counted(counted: Flops) -> list[str]:
    notes = [
        f"{name} runs {times} times; its FLOPs are not known and not counted"
        for name, times in counted.not_counted.items()
    ]
    if counted.open_loops:
        notes.append(
            f"{counted.open_loops} loops run an unknown number of iterations; one of each is counted"
        )
    return notes


def _taken_whole(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return [
        f"it is not known how {', '.join(names)} would be split over devices: the estimate assumes that each "
        "device does all of it"
    ]


def _masked(traced: TracedCosts, *, is_compiled: bool) -> list[str]:
    if traced.num_masked == 1:
        return []
    notes = [
        f"XLA has no kernel for jax.lax.ragged_dot here: it multiplies each row by all {traced.num_masked} "
        "experts of its device, with zeros for the others. Time and memory count that, the FLOPs of the "
        "model do not. mw.nn.moe avoids it."
    ]
    if not is_compiled and traced.most_nbytes > traced.memory.peak:
        notes.append(
            "the peak assumes that XLA makes these rows again, to save memory, wherever it could. If it "
            f"does not, the peak is higher, at most {human_bytes(traced.most_nbytes)}. A compiled plan tells."
        )
    return notes


def _lost_splits(exchanges: Sequence[Exchange], batch_axes: frozenset[str], num_summed: int) -> list[str]:
    """Return a note if all-reduces over the axes of the batch send far more than float32 gradients need."""
    summed = [x for x in exchanges if x.kind == "all-reduce" and batch_axes.issuperset(x.axes)]
    sent, needed = sum(x.sent_bytes for x in summed), 2 * 4 * num_summed
    if sent <= 2 * needed:
        return []
    return [
        f"a device sends {human_bytes(sent)} in all-reduces over {'+'.join(sorted(batch_axes))}, where "
        f"gradients need {human_bytes(needed)}: some activations are not split by example. Split them with "
        "mw.parallel.shard_batch_dim in the model."
    ]
