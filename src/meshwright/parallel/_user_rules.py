"""Sharding rules as users give them, in any form, turned into one sequence."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree, tree
from meshwright.errors import UsageError, did_you_mean, listed
from meshwright.parallel._axes import TENSOR
from meshwright.parallel._rules import Rule, check_rules

Rules = Sequence[Rule] | Mapping[str, Any] | None
"""Rules that a user gives: a list, None, or a dictionary of these for the parameters of several models."""


def as_rules(given: Rules, params: PyTree) -> tuple[Rule, ...]:
    """Return the given rules as one sequence, for arrays named `params/...`."""
    if isinstance(given, Mapping):
        _check_keys(given, params)
        for key, inner in given.items():
            names = tree.leaf_names({"params": params[key]})
            check_rules(as_rules(inner, params[key]), names)
    return tuple(_flat(given))


def _flat(given: Rules) -> Iterator[Rule]:
    if isinstance(given, Mapping):
        for key, inner in given.items():
            yield from (_below(f"params/{key}/", rule) for rule in _flat(inner))
        return
    for rule in given or ():
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
    there = list(params) if isinstance(params, Mapping) else []
    for key in rules:
        if key not in there:
            hint = did_you_mean(key, there) or f" There are {listed(there) or 'no keys'}."
            raise UsageError(f"sharding rules are given for {key!r}, which is not in the parameters.{hint}")
