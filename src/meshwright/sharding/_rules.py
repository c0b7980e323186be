"""Rules say how arrays are split over the mesh: `(name, array, mesh) -> PartitionSpec or None`.

The first rule that answers decides; None means "not mine". Any function of that shape is a rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from meshwright.patterns import Table, compiled, judge, optional

_ANY = optional("(?!)")
"""Stands for a rule without a pattern: it matches nothing, and need not."""

Rule = Callable[[str, jax.ShapeDtypeStruct, Mesh], P | None]
"""Given the name, shape and mesh of an array, its spec, or None where the rule says nothing about it."""


@runtime_checkable
class Reasoned(Protocol):
    """A rule that can say why it decides as it does; `Layout.explain` shows it."""

    def why(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh, /) -> str: ...


@runtime_checkable
class Patterned(Protocol):
    """A rule for the names that its pattern matches; `Layout.check` raises where there are none."""

    @property
    def pattern(self) -> str: ...


@runtime_checkable
class Named(Protocol):
    """A rule for arrays by their whole names; `Layout.check` has it look whether they are there."""

    def check(self, names: Sequence[str], /) -> None: ...


AxisEntry = str | tuple[str, ...] | None


def tables_of(rules: Sequence[Rule], names: Sequence[str]) -> dict[Table, Sequence[str]]:
    """Return the patterns of rules with the names of what is laid out, for `patterns.judge`."""
    patterns = (rule.pattern if isinstance(rule, Patterned) else _ANY for rule in rules)
    return {Table("rules", tuple(patterns)): names}


def check_rules(rules: Sequence[Rule], names: Sequence[str]) -> None:
    """Raise a `UsageError` that lists all rules that decide nothing of arrays of these names."""
    judge(tables_of(rules, names))
    for rule in rules:
        if isinstance(rule, Named):
            rule.check(names)


@dataclass(frozen=True)
class Match:
    """The rule that `match` makes."""

    pattern: str
    spec: tuple[AxisEntry, ...]

    def __post_init__(self) -> None:
        Table("match", (self.pattern,))

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        return P(*self.spec) if compiled(self.pattern)(name) else None


def match(pattern: str, *spec: AxisEntry) -> Rule:
    """Split arrays whose name, or the end of it, `pattern` matches as `PartitionSpec(*spec)` says.

    See `meshwright.patterns`. A pattern that decides nothing is an error when arrays are laid out, also where
    the mesh lacks the axes; `mw.match(mw.optional("head"), "tensor")` is a rule that may.

    Raises:
      UsageError: `pattern` is not a regular expression.
    """
    return Match(pattern, spec)


def fsdp(axis: str = "fsdp", *, min_size: int = 2**16) -> Rule:
    """Split the longest dimension that divides by mesh axis `axis` over it.

    Arrays of fewer than `min_size` elements are left whole: gathering them costs more than it
    saves. Does nothing on a mesh without `axis`.
    """
    return Fsdp(axis, min_size)


@dataclass(frozen=True)
class Fsdp:
    """The rule that `fsdp` makes."""

    axis: str
    min_size: int

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        ways = mesh.shape.get(self.axis, 1)
        if ways == 1 or x.size < self.min_size:
            return None
        longest = max(
            (d for d in range(x.ndim) if x.shape[d] % ways == 0), key=lambda d: x.shape[d], default=None
        )
        return None if longest is None else P(*[None] * longest, self.axis)
