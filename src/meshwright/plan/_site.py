"""An experiment put on hardware: what its step is there, traced and compiled."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import jax
from jax.sharding import Mesh

from meshwright.engine import naming
from meshwright.errors import MeshwrightError
from meshwright.experiment import Experiment, Parts, as_casts, compile_parts, parts_of
from meshwright.hlo import Collective, collectives
from meshwright.plan._chips import Tpu
from meshwright.plan._estimate import TracedCosts, traced_costs
from meshwright.plan._hardware import CPU, Hardware
from meshwright.plan._measured import measured_rates
from meshwright.plan._roofline import Rates, StepTime, published_rates, step_time
from meshwright.plan._topology import described_devices
from meshwright.plan._values import CheckpointCost, Exchange, Memory, Plan, checkpoint_cost
from meshwright.program import Flops, count_flops, utilisation_on
from meshwright.sharding import device_bytes, group_parts, grouped_mesh, make_mesh, mesh_rule
from meshwright.shown import human_bytes
from meshwright.tree import PyTree, nbytes


@dataclass(frozen=True)
class Compiled:
    """What of a compiled step a plan is about."""

    collectives: Sequence[Collective]
    temporary_nbytes: int
    """What is there while it runs, besides the state and the batch."""


def compiled_from(document: Mapping[str, Any]) -> Compiled:
    """Return what was written with `dataclasses.asdict` and as JSON."""

    def one(named: dict[str, Any]) -> Collective:
        named["axes"] = tuple(named["axes"])
        return Collective(**named)

    return Compiled([one(each) for each in document["collectives"]], document["temporary_nbytes"])


class NotCompiledError(MeshwrightError):
    """The hardware's compiler gave no program for it.

    Attributes:
      too_large: whether it found that the device's memory is not enough.
    """

    def __init__(self, why: str):
        super().__init__(why)
        self.too_large = "RESOURCE_EXHAUSTED" in why


@dataclass(frozen=True)
class Site:
    """An experiment, and where it would run."""

    experiment: Experiment
    hardware: Hardware
    rows: PyTree
    """Some rows to train on."""
    given_rates: Rates | None
    """What a device gets done in a second, where that is neither looked up nor measured."""
    bandwidth: float
    """Bytes a second that a host writes of a checkpoint."""

    @property
    def rates(self) -> Rates:
        """What a device gets done in a second; measured when first asked for, if it must be."""
        return self.given_rates or rates_of(self.hardware)

    @cached_property
    def parts(self) -> Parts:
        """The parts of a run on an abstract mesh."""
        return parts_of(self.experiment, self._mesh(self.hardware.num_devices), self.rows)

    @cached_property
    def jaxpr(self) -> Any:
        """The step, as traced."""
        return self.parts.step.trace(self.parts.target, self.parts.batch).jaxpr

    @cached_property
    def traced(self) -> TracedCosts:
        """What the traced step is estimated to take."""
        return traced_costs(self.jaxpr, self.parts.target, self.parts.layout)

    @property
    def ruled(self) -> list[str]:
        """What a mesh rule sets here: a note, as it does so whatever a command line says; or nothing."""
        rule = mesh_rule(self.experiment.mesh_rules, str(self.hardware))
        if rule is None or not rule[1].changes:
            return []
        return [f"the mesh rule {rule[0]!r} sets {', '.join(rule[1].changes)} here: change that there."]

    def compile(self) -> Compiled:
        """Compile the step with the hardware's compiler.

        Raises:
          NotCompiledError: it refuses, as that of TPUs does when their memory is not enough, or knows no such
            hardware.
        """
        try:
            mesh = self._mesh(described_devices(self.hardware))
            parts = parts_of(self.experiment, mesh, self.rows)
            ahead = compile_parts(parts)
        except jax.errors.JaxRuntimeError as error:
            raise NotCompiledError(str(error).partition("\n")[0]) from error
        text = ahead.compiled.as_text() or ""
        return Compiled(collectives(text, parts.layout.mesh), ahead.temporary_bytes)

    def plan(self, compiled: Compiled | None = None) -> Plan:
        """Return the plan: of what was compiled, if that is given."""
        found = self.traced.collectives if compiled is None else compiled.collectives
        counted = count_flops(self.jaxpr)
        time, exchanges = self._time(found), _exchanges(found, self._split_over_groups()[0])
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
            notes=(
                *self.ruled,
                *_not_counted(counted),
                *_taken_whole(self.traced.not_understood),
                *_lost_splits(exchanges, self._batch_axes, self.experiment.microbatches * num_params),
            ),
        )

    def _mesh(self, devices: Sequence[jax.Device] | int) -> Mesh:
        hardware, shape = self.hardware, self.experiment.mesh
        with naming("mesh"):
            if not isinstance(devices, int) and isinstance(hardware.chip.target, Tpu):
                return make_mesh(shape, devices)  # along the torus
            groups = hardware.num_mesh_groups if ";" in shape else hardware.num_groups
            return grouped_mesh(shape, groups, devices)

    def _split_over_groups(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return the sizes of the mesh's axes over groups with fast links among them, and inside each."""
        if self.hardware.num_groups == 1:
            return {}, self.parts.layout.mesh.shape
        return group_parts(self.experiment.mesh, self.hardware.num_groups, self.hardware.num_devices)

    def _time(self, found: Sequence[Collective]) -> StepTime:
        over, inside = self._split_over_groups()
        return step_time(
            self.traced.products,
            self.traced.other_nbytes,
            found,
            self.rates,
            inside=inside,
            over=over,
            hidden_axes=self._batch_axes,
        )

    @property
    def _batch_axes(self) -> frozenset[str]:
        return frozenset(jax.tree.leaves(tuple(self.parts.layout.batch_sharding.spec)))

    def _memory(self, compiled: Compiled | None) -> Memory:
        target, traced = self.parts.target, self.traced
        params, optimizer, state = map(_bytes_on_device, (target.params, target.opt_state, target))
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


@cache
def rates_of(hardware: Hardware) -> Rates:
    """Return what its devices get done: of CPUs, which are at hand, measured."""
    if hardware.chip.name == CPU:
        return measured_rates(described_devices(hardware))
    return published_rates(hardware.chip)


def _bytes_on_device(arrays: PyTree) -> int:
    """Return the bytes of structs in one device's memory; what is kept in the host's is not there."""
    on_device = (x for x in jax.tree.leaves(arrays) if x.sharding.memory_kind in (None, "device"))
    return sum(device_bytes(x, x.sharding) for x in on_device)


def _exchanges(found: Sequence[Collective], over: Mapping[str, int]) -> tuple[Exchange, ...]:
    """Return collectives by kind and axes, those that send most first."""
    together: dict[tuple[str, tuple[str, ...]], list[Collective]] = defaultdict(list)
    for each in found:
        together[each.kind, each.axes].append(each)
    exchanges = (
        Exchange(
            kind=kind,
            axes=axes,
            times=sum(each.times for each in alike),
            sent_bytes=sum(each.times * each.sent_nbytes for each in alike),
            crosses_groups=any(over.get(axis, 1) > 1 for axis in axes),
        )
        for (kind, axes), alike in together.items()
    )
    return tuple(sorted(exchanges, key=lambda each: -each.sent_bytes))


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
    told = utilisation_on(counted, 1 / time.seconds, hardware.chip.device_kind, hardware.num_devices)
    return told.get("mfu")


def _not_counted(counted: Flops) -> list[str]:
    notes = [
        f"{name} runs {times} times; its work is not known" for name, times in counted.not_counted.items()
    ]
    if counted.open_loops:
        notes.append(f"{counted.open_loops} loops turn an unknown number of times, and count once")
    return notes


def _taken_whole(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return [
        f"how {', '.join(names)} would be split over devices is not known, and estimated as if each device "
        "did it whole"
    ]


def _lost_splits(exchanges: Sequence[Exchange], batch_axes: frozenset[str], num_summed: int) -> list[str]:
    """Tell of all-reduces over the axes that split the batch that are more than all gradients in float32.

    Args:
      num_summed: how many numbers all gradients of a step are, those of each microbatch counted.
    """
    summed = [each for each in exchanges if each.kind == "all-reduce" and batch_axes.issuperset(each.axes)]
    sent, needed = sum(each.sent_bytes for each in summed), 2 * 4 * num_summed
    if sent <= 2 * needed:
        return []
    return [
        f"a device sends {human_bytes(sent)} in all-reduces over {'+'.join(sorted(batch_axes))}, where "
        f"gradients need {human_bytes(needed)}: activations are split otherwise than by example. Keep them "
        "so, with mw.sharding.shard_batch_dim in the model."
    ]
