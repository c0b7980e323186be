"""The structure of a model, from the shapes of its parameters and, in attention, from the usual names.

It serves when there is no function to trace. Dimensions of equal size are assumed to be one group. If sizes
are ambiguous, as in the square projections of attention, names decide: q, k, v and their usual variants. The
order of the tree plays no part, since it only depends on sorting.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from meshwright.parallel._attention import head_dims
from meshwright.parallel._names import POSITIONS, WIDENING, Leaf, leaves_of
from meshwright.parallel._structure import SMALL_TABLE, Dim, Dims, Group, Structure


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
    read, written = set(), set()
    for leaf in weights:
        inputs, outputs = leaf.ends
        if rows_out and not leaf.is_table and len(leaf.features) == 2:
            inputs, outputs = outputs, inputs
        read.add(dims[leaf.name][inputs].group)
        written.add(dims[leaf.name][outputs].group)
    heads = {dim.group for each in dims.values() for dim in each if "heads" in dim.kind}
    return frozenset(read ^ written) - heads - {None}
