"""Groups of dimensions of the parameters, and the choice of groups that tensor parallelism splits.

A *group* is a set of dimensions that are split together or not at all: if the output of one weight is the
input of the next, both dimensions are in one group. A weight joins the groups of its dimensions. If two
groups that a weight joins were both split, that weight would need communication on both sides. So groups are
chosen like Megatron's pairs (Shoeybi et al., 2019): hidden features, heads and the vocabulary are split, and
the residual stream, which touches all of them, is left whole.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

Group = Hashable

STACKS = ("layers", "experts")
"""Meanings of leading dimensions that parameters are stacked along."""
GATES = "gates"
"""Kind of dimensions in which the gates of a recurrent network are side by side."""
SMALL_TABLE = 4096
"""Most rows of a table (positions, token types) that stays whole: split lookups would cost more."""


@dataclass(frozen=True)
class Dim:
    """A dimension of a parameter."""

    group: Group | None = None
    """The group it belongs to; None if it is never split over the tensor axis."""
    pieces: int = 1
    """Number of equal parts that it can be split into, such as heads; otherwise its size."""
    features: int = 1
    """Number of features that it stands for, such as heads × head size; otherwise its size."""
    kind: str = ""
    """`heads`, `rows` of a table, `gates` or `features`.

    Without a group, one of `STACKS` or the reason for having none.
    """


Dims = tuple[Dim, ...]
"""All dimensions of one parameter."""


@dataclass(frozen=True)
class Structure:
    """The dimensions and groups of all parameters."""

    dims: Mapping[str, Dims]
    """Dimensions by the parameter's name."""
    ends: frozenset[Group] = frozenset()
    """Groups that weights only read, or only write: vocabularies, labels."""
    never: Mapping[Group, str] = field(default_factory=dict)
    """Groups that are not worth splitting, with the reason."""

    @cached_property
    def vocabularies(self) -> frozenset[Group]:
        """Groups whose tables are looked up, and the ends."""
        rows = {dim.group for dims in self.dims.values() for dim in dims if dim.kind == "rows"}
        return self.ends | rows


def split_groups(structure: Structure) -> frozenset[Group]:
    """Return the groups to split over the tensor axis, no two of them joined by a weight.

    The largest come first: splitting a group of n features of an n × m weight saves n × m × (1 - 1 / shards)
    numbers of memory and costs the exchange of m numbers per token. Ends come last, and ends smaller than the
    groups that they are joined to (a few labels, a router's choices) stay whole. The mesh plays no part, so
    that a change in the number of shards does not switch a weight from columns to rows.
    """
    features, degree, joined = _graph(structure)
    heads = {dim.group for dims in structure.dims.values() for dim in dims if "heads" in dim.kind}
    chosen: set[Group] = set()
    # Python's sort is stable: groups that compare equal keep the order in which they were found.
    in_order = sorted(features, key=lambda g: (g in structure.ends, -features[g], g not in heads, degree[g]))
    for group in in_order:
        beside = max((features[other] for other in joined[group]), default=0)
        too_small = group in structure.ends and features[group] < beside
        if group not in structure.never and not too_small and not joined[group] & chosen:
            chosen.add(group)
    return frozenset(chosen)


def _graph(
    structure: Structure,
) -> tuple[dict[Group, int], dict[Group, int], dict[Group, set[Group]]]:
    """Return, by group, its features, its number of weights, and the groups that weights join it to."""
    features: dict[Group, int] = {}
    degree: dict[Group, int] = defaultdict(int)
    joined: dict[Group, set[Group]] = defaultdict(set)
    for dims in structure.dims.values():
        groups = {dim.group for dim in dims if dim.group is not None}
        for dim in dims:
            if dim.group is not None:
                features[dim.group] = max(features.get(dim.group, 0), dim.features)
        for group in groups:
            degree[group] += len(groups) > 1
            joined[group] |= groups - {group}
    return features, degree, joined
