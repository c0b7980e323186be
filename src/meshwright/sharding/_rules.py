"""Rules say how arrays are split over the mesh: `(name, array, mesh) -> PartitionSpec or None`.

The first rule that answers decides; None means "not mine". Any function of that shape is a rule.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from meshwright import tree
from meshwright.errors import LayoutError

Rule = Callable[[str, jax.ShapeDtypeStruct, Mesh], P | None]


@runtime_checkable
class Reasoned(Protocol):
    """A rule that can say why it decides as it does; `Layout.explain` shows it."""

    def why(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh, /) -> str: ...


AxisEntry = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Match:
    """The rule that `match` makes."""

    pattern: str
    spec: tuple[AxisEntry, ...]

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        return P(*self.spec) if tree.ends_in(self.pattern)(name) else None


def match(pattern: str, *spec: AxisEntry) -> Rule:
    """Split arrays whose name ends in `pattern` as `PartitionSpec(*spec)` says.

    The regular expression must match the whole name or its last components, so `q|k|v` means
    leaves called q, k or v, and not `freq`; `decoder/.*/q` means those below `decoder`.

    Raises:
      LayoutError: `pattern` is not a regular expression.
    """
    try:
        tree.ends_in(pattern)
    except re.error as error:
        raise LayoutError(f"rule {pattern!r} is not a regular expression: {error}.") from None
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
