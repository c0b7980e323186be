"""One description, many machines: what to change where a run is started.

    mesh_rules = (
        ("NVIDIA H100.*:.*x8", mw.override(mesh="data=-1; fsdp=8", microbatches=1)),
        ("cpu.*", mw.override(microbatches=2, compute_dtype=None)),
        (".*", mw.override()),  # known, and nothing to change
    )
    experiment = mw.sharding.apply_mesh_rules(experiment, mesh_rules, mw.sharding.hardware())

`mw.run` does so with the rules of `Experiment.mesh_rules`.
The first rule whose regular expression matches the whole hardware string stands, and no other.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import jax

from meshwright.errors import UsageError, nearest
from meshwright.sharding._mesh import group_of

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Override:
    """New values for some fields of a dataclass; made by `override`. Of no fields: leave all as it is."""

    changes: Mapping[str, Any]

    def __call__(self, value: T) -> T:
        """Return a copy of the dataclass `value` with these fields changed; its own checks run again.

        Raises:
          UsageError: naming all fields that it does not have.
        """
        problem = self.problem(value)
        if problem:
            raise UsageError(problem)
        return dataclasses.replace(value, **self.changes)  # type: ignore[type-var]

    def problem(self, value: Any) -> str | None:
        """Return which fields `value` does not have, in words for people, or None."""
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        unknown = [name for name in self.changes if name not in fields]
        if not unknown:
            return None
        named = ", ".join(f"{name!r}{_perhaps(nearest(name, fields))}" for name in unknown)
        return f"{type(value).__name__} has no field {named}.\n  It has: {', '.join(fields)}."


def override(**changes: Any) -> Override:
    """Return an `Override`: `override(mesh="data=-1,fsdp=8", microbatches=4)`. `override()` changes nothing."""
    return Override(MappingProxyType(changes))


MeshRule = tuple[str, Override]
"""A regular expression for the whole hardware string, and what to change there."""


def hardware(devices: Sequence[jax.Device] | None = None) -> str:
    """Return the name of what a run is on: `NVIDIA H100 80GB HBM3:64x8`, `TPU v5 lite:16x4`, `cpu:8`.

    It is the devices' kind, as JAX spells it, a colon, and the number of hosts × the devices of each; of one
    host the devices alone; of unequal hosts each one's, `cpu:8+4`. Several kinds are joined by `+` too.

    A host is a process where that is known to be so, on TPUs, and where nothing better is known; of GPUs it
    is an NVLink domain, however many processes share it.
    """
    devices = jax.devices() if devices is None else devices
    kinds = sorted({device.device_kind for device in devices})
    return f"{'+'.join(kinds)}:{_counted(devices)}"


def mesh_rule(rules: Sequence[MeshRule], hardware: str) -> MeshRule | None:
    """Return the first rule whose pattern matches all of `hardware`, or None where none does.

    Raises:
      UsageError: a pattern, of whichever rule, is not a regular expression.
    """
    patterns = [_compiled(pattern) for pattern, _ in rules]
    found = (rule for rule, pattern in zip(rules, patterns, strict=True) if pattern.fullmatch(hardware))
    return next(found, None)


def apply_mesh_rules(value: T, rules: Sequence[MeshRule], hardware: str) -> T:
    """Return the dataclass `value` as the first rule for `hardware` changes it; itself where none matches.

    Raises:
      UsageError: a pattern is not a regular expression, or an override names a field that `value` does not
        have. Rules for other hardware are looked at too: a typing error in them shows here, not there.
    """
    problems = [f"mesh rule {p!r}: {found}" for p, change in rules if (found := change.problem(value))]
    if problems:
        raise UsageError("\n".join(problems))
    rule = mesh_rule(rules, hardware)
    return value if rule is None else rule[1](value)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"mesh rule {pattern!r} is not a regular expression: {error}.") from None


def _perhaps(close: str | None) -> str:
    return f" (did you mean {close!r}?)" if close else ""


def _counted(devices: Sequence[jax.Device]) -> str:
    sizes = [size for _, size in sorted(Counter(map(_host_of, devices)).items())]
    if len(set(sizes)) > 1:
        return "+".join(map(str, sizes))
    return str(sizes[0]) if len(sizes) == 1 else f"{len(sizes)}x{sizes[0]}"


def _host_of(device: jax.Device) -> int:
    return device.process_index if device.platform == "tpu" else group_of(device)
