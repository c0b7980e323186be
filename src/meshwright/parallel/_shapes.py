"""The structure of a model, from the shapes of its parameters and, in attention, from the usual names.

It serves when there is no function to trace. Dimensions of equal size are assumed to be one group. If sizes
are ambiguous, as in the square projections of attention, names decide: q, k, v and their usual variants. The
order of the tree plays no part, since it only depends on sorting.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.parallel._names import OUTPUTS, POSITIONS, WIDENING, Leaf, Path, by_prefix, leaves_of
from meshwright.parallel._structure import SMALL_TABLE, Dim, Dims, Group, Structure


@dataclass(frozen=True)
class Projection:
    """A weight between the model's width and its heads."""

    leaf: Leaf
    dim: int
    """The dimension of the heads."""
    size_dim: int | None = None
    """The dimension of the features of each head, if it is separate."""

    @property
    def size(self) -> int:
        """Number of head features, heads × head size."""
        return self.leaf.shape[self.dim] * (1 if self.size_dim is None else self.leaf.shape[self.size_dim])

    @property
    def width(self) -> int:
        """Number of features of the model outside attention."""
        return math.prod(self.leaf.shape[d] for d in self.leaf.features) // self.size

    def pieces(self, head_size: int, queries: int) -> int:
        """Return the number of heads that may be split; `queries` is heads × head size of the queries."""
        if self.size_dim is not None:
            return self.leaf.shape[self.dim]
        parts = [self.size]
        # Queries, keys and values are concatenated.
        if len(self.leaf.letters) == 3:
            parts = [queries, (self.size - queries) // 2]
        return math.gcd(*(part // head_size if part % head_size == 0 else 1 for part in parts))


def head_dims(weights: list[Leaf], head_size: int | None, rows_out: bool) -> dict[str, dict[int, Dim]]:
    """Return the head and head-size dimensions of each attention weight, by the weight's name."""
    dims: dict[str, dict[int, Dim]] = {}
    below = by_prefix(weights)
    for block, leaves in _blocks(weights, below).items():
        makers = [_projection(leaf, makes=True, rows_out=rows_out) for leaf in leaves]
        query = max(makers, key=lambda maker: ("q" in maker.leaf.letters, maker.size))
        outputs = _outputs(block, makers, query, below, rows_out)
        queries = outputs[0].size if outputs else query.size // len(query.leaf.letters)
        assumed_size = head_size or _assumed_head_size(makers, queries)
        for projection in (*makers, *outputs):
            assumed = "" if head_size or projection.size_dim is not None else f" (of {assumed_size}, assumed)"
            pieces = projection.pieces(assumed_size, queries)
            heads = Dim(("heads", block), pieces, projection.size, f"heads{assumed}")
            dims[projection.leaf.name] = {projection.dim: heads}
            if projection.size_dim is not None:
                dims[projection.leaf.name][projection.size_dim] = Dim(kind="within a head")
    return dims


def _blocks(weights: list[Leaf], below: dict[Path, list[Leaf]]) -> dict[Path, list[Leaf]]:
    """Return the weights that make queries, keys or values, by the smallest subtree that holds all three."""
    letters = {prefix: set().union(*(leaf.letters for leaf in members)) for prefix, members in below.items()}
    blocks: dict[Path, list[Leaf]] = {}
    for leaf in weights:
        above = [leaf.layer[:length] for length in reversed(range(len(leaf.layer)))] if leaf.letters else []
        block = next((prefix for prefix in above if letters[prefix] == set("qkv")), None)
        if block is not None:
            blocks.setdefault(block, []).append(leaf)
    return blocks


def _outputs(
    block: Path,
    makers: list[Projection],
    query: Projection,
    below: dict[Path, list[Leaf]],
    rows_out: bool,
) -> list[Projection]:
    """Return the weights from heads back to the width.

    They are in the block, or above it if nothing else there attends.
    """
    block_names = {maker.leaf.name for maker in makers}
    for length in range(len(block), -1, -1):
        members = below[block[:length]]
        if any(leaf.letters and leaf.name not in block_names for leaf in members):
            return []
        others = (
            _projection(leaf, makes=False, rows_out=rows_out)
            for leaf in members
            if not leaf.letters and not leaf.is_table
        )
        fit = [other for other in others if _undoes(other, query)]
        if fit:
            return [other for other in fit if other.leaf.words & OUTPUTS] or fit
    return []


def _undoes(output: Projection, maker: Projection) -> bool:
    if output.width != maker.width:
        return False
    fused = len(maker.leaf.letters) == 3 and maker.size_dim is None
    named = bool(output.leaf.words & OUTPUTS)
    return named and output.size < maker.size if fused else output.size == maker.size


def _projection(leaf: Leaf, *, makes: bool, rows_out: bool) -> Projection:
    if len(leaf.features) == 2:
        return Projection(leaf, leaf.features[0 if makes == rows_out else 1])
    widest = max(leaf.features, key=lambda d: leaf.shape[d])
    *_, heads, size = (d for d in leaf.features if d != widest)
    return Projection(leaf, heads, size)


def _assumed_head_size(makers: list[Projection], queries: int) -> int:
    """Return a common head size: 64 in small models, 128 in large ones or with fewer keys.

    Else one head of 256.
    """
    sizes = ((maker.size, len(maker.leaf.letters)) for maker in makers)
    keys = min((size - queries) // 2 if letters == 3 else size // letters for size, letters in sizes)
    if keys < queries:
        return 256 if keys <= 256 else 128
    return 64 if queries < 2048 else 128


def shaped_structure(arrays: Mapping[str, Any], head_size: int | None) -> Structure:
    """Return the structure found from shapes and names."""
    leaves = leaves_of(arrays)
    weights = [leaf for leaf in leaves if leaf.is_weight]
    rows_out = _rows_are_outputs(leaves, weights)
    dims = {leaf.name: _by_size(leaf) for leaf in leaves}
    for name, heads in head_dims(weights, head_size, rows_out).items():
        dims[name] = tuple(heads.get(d, dim) for d, dim in enumerate(dims[name]))
    for bias, weight in _beside(leaves, weights):
        dims[bias.name] = _bias_dims(bias, weight, dims, rows_out) or dims[bias.name]
    return Structure(dims, _open_ends(weights, dims, rows_out))


def _by_size(leaf: Leaf) -> Dims:
    """Return dimensions grouped by their size alone."""
    dims = [Dim(kind=kind) for kind in leaf.stacks] + [Dim()] * (len(leaf.shape) - len(leaf.stacks))
    for d in leaf.ends if len(leaf.features) > 1 else leaf.features:
        kind = "rows" if leaf.is_table and d == leaf.features[0] else "features"
        dims[d] = Dim(("size", leaf.shape[d]), leaf.shape[d], leaf.shape[d], kind)
        if kind == "rows" and (leaf.shape[d] <= SMALL_TABLE or leaf.words & POSITIONS):
            dims[d] = Dim(kind="a small table")
    return tuple(dims)


def _beside(leaves: list[Leaf], weights: list[Leaf]) -> list[tuple[Leaf, Leaf]]:
    """Return pairs of an array and the only weight of the same layer: mostly biases with their weights."""
    number = Counter(leaf.path[:-1] for leaf in weights)
    only = {leaf.path[:-1]: leaf for leaf in weights if number[leaf.path[:-1]] == 1}
    pairs = ((leaf, only.get(leaf.path[:-1])) for leaf in leaves)
    return [(leaf, weight) for leaf, weight in pairs if weight and len(leaf.shape) < len(weight.shape)]


def _bias_dims(bias: Leaf, weight: Leaf, dims: Mapping[str, Dims], rows_out: bool) -> Dims | None:
    """Return the output dimensions of the weight for its bias; None if the array is not a bias."""
    stacks, own = len(bias.stacks), bias.shape[len(bias.stacks) :]
    last = weight.features[0] + 1 if rows_out and len(own) == 1 else len(weight.shape)
    outputs = slice(last - len(own), last)
    fits = own and own == weight.shape[outputs]
    return (*dims[bias.name][:stacks], *dims[weight.name][outputs]) if fits else None


def _rows_are_outputs(leaves: list[Leaf], weights: list[Leaf]) -> bool:
    """Return whether matrices are stored as [out, in], as in PyTorch and Equinox.

    Biases and names show it.
    """
    votes = 0
    for bias, weight in _beside(leaves, weights):
        rows, columns = (weight.shape[d] for d in weight.ends)
        if len(weight.features) == 2 and rows != columns and bias.features:
            size = bias.shape[bias.features[-1]]
            votes += (size == rows) - (size == columns)
    for leaf in weights:
        if len(leaf.features) == 2 and leaf.words & WIDENING:
            rows, columns = (leaf.shape[d] for d in leaf.ends)
            votes += (rows > columns) - (rows < columns)
    return votes > 0


def _open_ends(weights: list[Leaf], dims: Mapping[str, Dims], rows_out: bool) -> frozenset[Group]:
    """Return the groups that weights only read or only write."""
    read, produced = set(), set()
    for leaf in weights:
        inputs, outputs = leaf.ends
        if rows_out and not leaf.is_table and len(leaf.features) == 2:
            inputs, outputs = outputs, inputs
        read.add(dims[leaf.name][inputs].group)
        produced.add(dims[leaf.name][outputs].group)
    heads = {dim.group for axes in dims.values() for dim in axes if "heads" in dim.kind}
    return frozenset(read ^ produced) - heads - {None}
