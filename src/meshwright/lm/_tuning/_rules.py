"""Sharding rules for a model whose parameters are now a part of a larger tree, some of them in few bits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import OptionalPattern, optional
from meshwright.parallel._internal import Rule

_WHOLE = "^params/"


def with_base(rules: Sequence[Rule], base: str, adapter: str) -> tuple[Rule, ...]:
    """Return rules for parameters below `base`, from those for `params/`; all below `adapter` is whole."""
    return tuple(
        OfPattern(rule, base, adapter, _moved(rule.pattern, base))
        if hasattr(rule, "pattern")
        else OfBase(rule, base, adapter)
        for rule in rules
    )


@dataclass(frozen=True)
class OfBase:
    """A rule of the model, for its parameters below another prefix."""

    rule: Rule
    base: str
    adapter: str

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        if name.startswith(self.adapter):
            return P()
        if not name.startswith(self.base):
            return self.rule(name, x, mesh)
        whole = "params/" + name.removeprefix(self.base)
        codes, scales = (whole.removesuffix(end) for end in ("/codes", "/scales"))
        if scales != whole:
            answer = self.rule(scales, x, mesh)
            return None if answer is None else _where_divisible(answer, x.shape, mesh)
        return self.rule(codes, x, mesh)


@dataclass(frozen=True)
class OfPattern(OfBase):
    """Such a rule with a pattern, which is judged by the names of the larger tree."""

    pattern: str


def _moved(pattern: str, base: str) -> str:
    """Return the pattern for the names below `base`, and for the two arrays of a quantised weight."""
    below = f"^{base}{pattern.removeprefix(_WHOLE)}" if pattern.startswith(_WHOLE) else pattern
    new = f"(?:{below})(?:/codes|/scales)?"
    return optional(new) if isinstance(pattern, OptionalPattern) else new


def _where_divisible(spec: P, shape: tuple[int, ...], mesh: Mesh) -> P:
    """Return the spec without entries that do not divide the scales, which are few."""

    def fits(entry: str | tuple[str, ...] | None, size: int) -> bool:
        axes = (entry,) if isinstance(entry, str) else entry or ()
        return size % math.prod(mesh.shape.get(axis, 1) for axis in axes) == 0

    return P(*(entry if fits(entry, size) else None for entry, size in zip(spec, shape, strict=False)))
