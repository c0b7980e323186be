"""Mesh rules: changes to the settings of a run that depend on the hardware where it starts.

    mesh_rules = (
        ("NVIDIA H100.*:.*x8", mw.parallel.override({"input.batch_size": 512}, mesh="data=-1; fsdp=8")),
        ("cpu.*", mw.parallel.override(microbatches=2, compute_dtype=None)),
        (".*", mw.parallel.override()),  # any other hardware: change nothing
    )
    experiment = mw.parallel.apply_mesh_rules(experiment, mesh_rules, mw.parallel.hardware())

`mw.run` applies the rules of `Experiment.mesh_rules` in this way.

Only the first rule whose regular expression matches the whole hardware string applies.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import jax

from meshwright.errors import UsageError, nearest
from meshwright.parallel._mesh import group_of

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Override:
    """New values for some settings, by dotted path, as `override` makes them. It may have none."""

    changes: Mapping[str, Any]
    """New values by dotted path."""

    def __call__(self, value: T) -> T:
        """Return a copy of the dataclass `value` with these settings changed; its own checks run again."""
        problem = self.problem(value)
        if problem:
            raise UsageError(problem)
        return _changed(value, self.changes)

    def problem(self, value: Any) -> str | None:
        """Return the error message about settings that `value` lacks; None if it has all."""
        unknown = list(filter(None, (_unknown(value, path) for path in self.changes)))
        twice = [
            f"both {path!r} and a setting inside it are changed: leave one of the two out."
            for path in self.changes
            if any(other.startswith(f"{path}.") for other in self.changes)
        ]
        return "\n".join([*unknown, *twice]) or None


def override(changes: Mapping[str, Any] = MappingProxyType({}), /, **more: Any) -> Override:
    """Return new values for some settings, to use in a mesh rule.

    Args:
      changes: Values by dotted path, for settings inside settings: `{"evaluations.test.batch_size": 64}`.
      **more: Values by name. `override()` changes nothing.

    Example:
      >>> longer = mw.parallel.override(num_steps=10)
      >>> longer(mw.Profile(steps=(100,))).num_steps
      10
    """
    return Override(MappingProxyType({**changes, **more}))


def _changed(owner: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy of a dataclass or mapping with the values at these paths changed, all at once."""
    inner: dict[str, dict[str, Any]] = {}
    new = {}
    for path, value in changes.items():
        name, dot, rest = path.partition(".")
        if dot:
            inner.setdefault(name, {})[rest] = value
        else:
            new[name] = value
    settings = _settings_of(owner)
    new |= {name: _changed(settings[name], below) for name, below in inner.items()}
    return {**owner, **new} if isinstance(owner, Mapping) else dataclasses.replace(owner, **new)


def _unknown(owner: Any, path: str) -> str | None:
    """Return the error message about a path that leads to no setting of `owner`; None if it leads to one."""
    value, above = owner, ""
    for name in path.split("."):
        settings = _settings_of(value)
        if name not in settings:
            close, kind = nearest(name, settings), type(value).__name__
            hint = f" (did you mean {close!r}?)" if close else ""
            whole = f" (in {path!r})" if "." in path else ""
            remedy = f"It has: {', '.join(settings)}." if settings else f"{above or kind} has no settings."
            return f"{kind} has no field {name!r}{whole}{hint}.\n  {remedy}"
        value, above = settings[name], f"{above}.{name}".lstrip(".")
    return None


def _settings_of(owner: Any) -> Mapping[str, Any]:
    if isinstance(owner, Mapping):
        return owner
    if not dataclasses.is_dataclass(owner) or isinstance(owner, type):
        return {}
    return {field.name: getattr(owner, field.name) for field in dataclasses.fields(owner) if field.init}


MeshRule = tuple[str, Override]
"""A regular expression for the whole hardware string, and the changes to make there."""


def hardware(devices: Sequence[jax.Device] | None = None) -> str:
    """Return a text for the hardware of a run: `NVIDIA H100 80GB HBM3:64x8`, `TPU v5 lite:16x4`, `cpu:8`.

    It has the devices' kind as JAX spells it, a colon, and hosts × devices per host; a single host has its
    number of devices alone, and unequal hosts have the number of each, `cpu:8+4`. Several kinds are joined by
    `+`. For GPUs a host is an NVLink domain, however many processes share it. In all other cases it is a
    process.

    Args:
      devices: The devices; by default all devices of the run.

    Example:
      >>> mw.parallel.hardware()
      'cpu:8'
    """
    devices = jax.devices() if devices is None else devices
    kinds = sorted({device.device_kind for device in devices})
    hosts = (x.process_index if x.platform == "tpu" else group_of(x) for x in devices)
    sizes = [size for _, size in sorted(Counter(hosts).items())]
    if len(set(sizes)) > 1:
        counts = "+".join(map(str, sizes))
    else:
        counts = str(sizes[0]) if len(sizes) == 1 else f"{len(sizes)}x{sizes[0]}"
    return f"{'+'.join(kinds)}:{counts}"


def mesh_rule(rules: Sequence[MeshRule], hardware: str) -> MeshRule | None:
    """Return the first rule whose pattern matches all of `hardware`; None if there is none.

    Example:
      >>> rules = (("NVIDIA.*:8", mw.parallel.override(mesh="fsdp=8")), (".*", mw.parallel.override()))
      >>> mw.parallel._internal.mesh_rule(rules, "NVIDIA H200:8")[0]
      'NVIDIA.*:8'
    """
    patterns = [_compiled(pattern) for pattern, _ in rules]
    matches = (rule for rule, pattern in zip(rules, patterns, strict=True) if pattern.fullmatch(hardware))
    return next(matches, None)


def apply_mesh_rules(value: T, rules: Sequence[MeshRule], hardware: str) -> T:
    """Return the dataclass `value` changed by the first rule for `hardware`; unchanged if no rule matches.

    Args:
      value: A dataclass, such as an `Experiment`.
      rules: Pairs of a regular expression and an `Override`.
      hardware: Text as `hardware()` returns.

    Raises:
      UsageError: A pattern is not a regular expression, or an override names a field that `value` lacks.
        Rules for other hardware are checked, too: a typing error shows here, and not on that hardware.

    Example:
      >>> profile = mw.Profile()
      >>> rules = (("cpu.*", mw.parallel.override(num_steps=2)), (".*", mw.parallel.override()))
      >>> mw.parallel.apply_mesh_rules(profile, rules, "cpu:8").num_steps
      2
    """
    problems = [f"mesh rule {p!r}: {text}" for p, change in rules if (text := change.problem(value))]
    if problems:
        raise UsageError("\n".join(problems))
    rule = mesh_rule(rules, hardware)
    return value if rule is None else rule[1](value)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"mesh rule {pattern!r} is not a regular expression: {error}.") from None
