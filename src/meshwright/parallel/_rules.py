"""Rules that split arrays over the mesh: functions `(name, array, mesh) -> PartitionSpec or None`.

The first rule that does not return None decides. Any function with this signature is a rule.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree, Table, compiled, judge, optional, tree
from meshwright.errors import UsageError, did_you_mean, listed
from meshwright.parallel._axes import AXES, FSDP, PIPELINE, TENSOR, Use, num_stages

_ANY = optional("(?!)")
"""Pattern of a rule without a pattern: it matches nothing, and need not."""

Rule = Callable[[str, jax.ShapeDtypeStruct, Mesh], P | None]
"""A function of an array's name, shape and mesh that returns its spec, or None: a later rule decides."""


@runtime_checkable
class HasReason(Protocol):
    """A rule that gives a reason for its decision, which `Layout.explain` shows."""

    def why(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh, /) -> str: ...


@runtime_checkable
class HasPattern(Protocol):
    """A rule for names that match its pattern; `Layout.check` raises an error if there are none."""

    @property
    def pattern(self) -> str: ...


@runtime_checkable
class HasNames(Protocol):
    """A rule for arrays by their whole names; `Layout.check` calls its `check`, which looks for them."""

    def check(self, names: Sequence[str], /) -> None: ...


AxisEntry = str | tuple[str, ...] | None


def tables_of(rules: Sequence[Rule], names: Sequence[str]) -> dict[Table, Sequence[str]]:
    """Return the patterns of rules with the names of all arrays, for `patterns.judge`."""
    patterns = (rule.pattern if isinstance(rule, HasPattern) else _ANY for rule in rules)
    return {Table("rules", tuple(patterns)): names}


def check_rules(rules: Sequence[Rule], names: Sequence[str]) -> None:
    """Raise a `UsageError` that lists all rules that decide none of the arrays with these names."""
    judge(tables_of(rules, names))
    for rule in rules:
        if isinstance(rule, HasNames):
            rule.check(names)


@dataclass(frozen=True)
class Match:
    """The rule that `match` makes."""

    pattern: str
    """Regular expression for a whole name or its last components."""
    spec: tuple[AxisEntry, ...]
    """Entries of the `PartitionSpec`."""

    def __post_init__(self) -> None:
        Table("match", (self.pattern,))

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        return P(*self.spec) if compiled(self.pattern)(name) else None


def match(pattern: str, *spec: AxisEntry) -> Rule:
    """Return a rule that splits arrays with a matching name as `PartitionSpec(*spec)` says.

    A pattern that decides no array is an error when arrays are laid out, even if the mesh lacks the axes.
    `mw.parallel.match(mw.parallel.optional("head"), "tensor")` may decide none.

    Args:
      pattern: Regular expression for a whole name or its last components; see `meshwright.base._patterns`.
      spec: For each dimension the mesh axis that splits it, several of them in a tuple, or None.

    Raises:
      UsageError: `pattern` is not a regular expression.

    Example:
      >>> rules = (mw.parallel.match("wo|down", "tensor", "fsdp"), mw.parallel.match(".*", "fsdp"))
      >>> layout = mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), rules)
      >>> layout.spec("layer/down", jnp.ones((512, 128)))
      P('tensor', 'fsdp')
    """
    return Match(pattern, spec)


def fsdp(axis: str = FSDP, *, min_size: int = 2**16) -> Rule:
    """Return a rule that splits the longest dimension divisible by a mesh axis over that axis.

    The axis `fsdp` and `sequence` do this together, as if they were one: the parts of a row, like rows, need
    all weights, but no device needs to hold them. On a mesh without the axis the rule splits nothing.

    Args:
      axis: The mesh axis.
      min_size: Arrays with fewer elements are left whole: gathering them costs more than it saves.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("fsdp=8"), (mw.parallel.fsdp(),))
      >>> layout.spec("w", jnp.ones((128, 1024))), layout.spec("bias", jnp.ones(1024))
      (P(None, 'fsdp'), P())
    """
    return Fsdp(axis, min_size)


@dataclass(frozen=True)
class Fsdp:
    """The rule that `fsdp` makes."""

    axis: str
    min_size: int

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        if x.size < self.min_size:
            return None
        for axes in state_axes(mesh, self.axis):
            ways = math.prod(mesh.shape[axis] for axis in axes)
            longest = max(
                (d for d in range(x.ndim) if x.shape[d] % ways == 0), key=lambda d: x.shape[d], default=None
            )
            if longest is not None:
                return P(*[None] * longest, axes if len(axes) > 1 else axes[0])
        return None


def state_axes(mesh: Mesh, axis: str = FSDP) -> list[tuple[str, ...]]:
    """Return the axes that split arrays by size, the best first: `fsdp` with `sequence`, or one alone."""
    joining = (name for name, row in AXES.items() if row.state is Use.BESIDES and axis == FSDP)
    together = tuple(name for name in (axis, *joining) if mesh.shape.get(name, 1) > 1)
    return [together, *((name,) for name in together if len(together) > 1)] if together else []


def stages(pattern: str = "layers/.*") -> Rule:
    """Return a rule that splits stacked layers, the first dimension, over the mesh axis `pipeline`.

    On a mesh without the axis it decides nothing, so that a later rule does. `infer_rules` finds stacked
    layers itself.

    Args:
      pattern: Regular expression for a whole name or its last components; see `meshwright.base._patterns`.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("pipeline=4,fsdp=2"), (mw.parallel.stages(), mw.parallel.fsdp()))
      >>> layout.spec("layers/w", jnp.ones((8, 256, 256))), layout.spec("head", jnp.ones((256, 512)))
      (P('pipeline',), P(None, 'fsdp'))
    """
    return Stages(pattern)


@dataclass(frozen=True)
class Stages:
    """The rule that `stages` makes."""

    pattern: str

    def __post_init__(self) -> None:
        Table("stages", (self.pattern,))

    def __call__(self, name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        is_stacked = x.ndim > 0 and compiled(self.pattern)(name)
        return P(PIPELINE) if is_stacked and num_stages(mesh.shape) > 1 else None


Rules = Sequence[Rule] | Mapping[str, Any] | None
"""Rules that a user gives: a list, None, or a dictionary of these for the parameters of several models."""


def as_rules(rules: Rules, params: PyTree) -> tuple[Rule, ...]:
    """Return rules as one sequence, for arrays named `params/...`."""
    if isinstance(rules, Mapping):
        _check_keys(rules, params)
        for key, inner in rules.items():
            names = tree.leaf_names({"params": params[key]})
            check_rules(as_rules(inner, params[key]), names)
    return tuple(_flat(rules))


def _flat(rules: Rules) -> Iterator[Rule]:
    if isinstance(rules, Mapping):
        for key, inner in rules.items():
            yield from (_below(f"params/{key}/", rule) for rule in _flat(inner))
        return
    for rule in rules or ():
        if not callable(rule):
            raise UsageError(
                f"{rule!r} is not a sharding rule.\n"
                "  Give what get_sharding_rules returns, or mw.parallel.match('q_proj/kernel', None, "
                f"{TENSOR!r})."
            )
        yield rule


def _below(above: str, rule: Rule) -> Rule:
    """Return a rule written for one model's `params/...`, for arrays named `above...`."""

    def of_model(name: str, x: jax.ShapeDtypeStruct, mesh: Mesh) -> P | None:
        return rule(f"params/{name.removeprefix(above)}", x, mesh) if name.startswith(above) else None

    return of_model


def _check_keys(rules: Mapping[str, Any], params: PyTree) -> None:
    keys = list(params) if isinstance(params, Mapping) else []
    for key in rules:
        if key not in keys:
            hint = did_you_mean(key, keys) or f" There are {listed(keys) or 'no keys'}."
            raise UsageError(f"sharding rules are given for {key!r}, which is not in the parameters.{hint}")
