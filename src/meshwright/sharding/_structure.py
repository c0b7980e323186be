"""Which dimensions of the parameters belong together, and which of them tensor parallelism splits.

A *group* is a set of dimensions that are split together or not at all: where the output of one weight
is the input of the next, both dimensions are one group. A weight joins the groups of its dimensions,
and splitting two groups that one weight joins would make that weight talk on both sides. So the groups
to split are chosen like Megatron's pairs (Shoeybi et al., 2019): hidden features, heads and the
vocabulary are split, and the residual stream, which all of them touch, is left whole.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

Group = Hashable

STACKS = ("layers", "experts")
"""What parameters are stacked by, in front."""
SMALL_TABLE = 4096
"""A table of at most so many rows (positions, token types) stays whole: its lookups would cost more."""


@dataclass(frozen=True)
class Dim:
    """What is known of one dimension of one parameter."""

    group: Group | None = None
    """The group it belongs to; None: never split over the tensor axis."""
    pieces: int = 1
    """The number of equal parts that may be dealt out: heads, say, or else its size."""
    features: int = 1
    """How many features it stands for: heads × head size, or else its size."""
    kind: str = ""
    """`heads`, `rows` of a table or `features`; without a group one of `STACKS`, or why it has none."""


Dims = tuple[Dim, ...]
"""Those of one parameter."""


@dataclass(frozen=True)
class Structure:
    """What is known of a whole tree of parameters."""

    dims: Mapping[str, Dims]
    """By the parameter's name."""
    ends: frozenset[Group] = frozenset()
    """Groups that weights only read, or only write: vocabularies, labels."""
    never: Mapping[Group, str] = field(default_factory=dict)
    """Groups not worth splitting, with the reason."""

    @cached_property
    def vocabularies(self) -> frozenset[Group]:
        """The groups by which tables are looked up, and the ends."""
        rows = {dim.group for dims in self.dims.values() for dim in dims if dim.kind == "rows"}
        return self.ends | rows


def split_groups(structure: Structure) -> frozenset[Group]:
    """Return the groups to split over the tensor axis, no two of them joined by a weight.

    The largest come first: splitting a group of n features of a weight of n × m spares n × m / ways
    numbers of memory and costs the exchange of m for each token. Ends wait until the last, and those
    smaller than what they are joined to (a few labels, a router's choices) stay whole. The mesh plays
    no part, so that another number of shards changes no weight from columns to rows.
    """
    features, degree, joined = _graph(structure)
    heads = {dim.group for dims in structure.dims.values() for dim in dims if "heads" in dim.kind}
    chosen: set[Group] = set()
    # Python's sort is stable: what is left equal stays in the order in which it was found.
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
    """Return by group: its features, how many weights touch it, and the groups that weights join it to."""
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
