"""Dimensions of attention heads, found from names and shapes: `q_proj` [width, heads × head size] and others.

The size of a head is usually not visible in the shapes: 256 key features may be 4 heads of 64 or one head
of 256. The assumed size is then rather too large than too small, so that few heads are cut in two.
"""

import math
from dataclasses import dataclass

from meshwright.parallel._names import OUTPUTS, Leaf, Path, by_prefix
from meshwright.parallel._structure import Dim


@dataclass(frozen=True)
class Projection:
    """A weight between the model's width and its heads."""

    leaf: Leaf
    dim: int
    """The dimension of the heads."""
    size_dim: int | None = None
    """The dimension of the features of each head, if it is separate."""

    @property
    def made(self) -> int:
        """Number of head features, heads × head size."""
        return self.leaf.shape[self.dim] * (1 if self.size_dim is None else self.leaf.shape[self.size_dim])

    @property
    def width(self) -> int:
        """Number of features of the model outside attention."""
        return math.prod(self.leaf.shape[d] for d in self.leaf.features) // self.made

    def pieces(self, head_size: int, queries: int) -> int:
        """Return the number of heads that may be split; `queries` is heads × head size of the queries."""
        if self.size_dim is not None:
            return self.leaf.shape[self.dim]
        parts = [self.made]
        if len(self.leaf.letters) == 3:  # queries, keys and values concatenated
            parts = [queries, (self.made - queries) // 2]
        return math.gcd(*(part // head_size if part % head_size == 0 else 1 for part in parts))


def head_dims(weights: list[Leaf], head_size: int | None, rows_out: bool) -> dict[str, dict[int, Dim]]:
    """Return the head and head-size dimensions of each attention weight, by the weight's name."""
    found: dict[str, dict[int, Dim]] = {}
    below = by_prefix(weights)
    for block, leaves in _blocks(weights, below).items():
        makers = [_projection(leaf, makes=True, rows_out=rows_out) for leaf in leaves]
        of_queries = max(makers, key=lambda maker: ("q" in maker.leaf.letters, maker.made))
        outputs = _outputs(block, makers, of_queries, below, rows_out)
        queries = outputs[0].made if outputs else of_queries.made // len(of_queries.leaf.letters)
        size = head_size or _assumed_head_size(makers, queries)
        for projection in (*makers, *outputs):
            assumed = "" if head_size or projection.size_dim is not None else f" (of {size}, assumed)"
            pieces = projection.pieces(size, queries)
            heads = Dim(("heads", block), pieces, projection.made, f"heads{assumed}")
            found[projection.leaf.name] = {projection.dim: heads}
            if projection.size_dim is not None:
                found[projection.leaf.name][projection.size_dim] = Dim(kind="within a head")
    return found


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
    of_queries: Projection,
    below: dict[Path, list[Leaf]],
    rows_out: bool,
) -> list[Projection]:
    """Return the weights from heads back to the width.

    They are in the block, or above it if nothing else there attends.
    """
    mine = {maker.leaf.name for maker in makers}
    for length in range(len(block), -1, -1):
        members = below[block[:length]]
        if any(leaf.letters and leaf.name not in mine for leaf in members):
            return []
        others = (
            _projection(leaf, makes=False, rows_out=rows_out)
            for leaf in members
            if not leaf.letters and not leaf.is_table
        )
        fit = [other for other in others if _undoes(other, of_queries)]
        if fit:
            return [other for other in fit if other.leaf.words & OUTPUTS] or fit
    return []


def _undoes(output: Projection, maker: Projection) -> bool:
    if output.width != maker.width:
        return False
    fused = len(maker.leaf.letters) == 3 and maker.size_dim is None
    named = bool(output.leaf.words & OUTPUTS)
    return named and output.made < maker.made if fused else output.made == maker.made


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
    keys = min(_features_of_one(maker, queries) for maker in makers)
    if keys < queries:
        return 256 if keys <= 256 else 128
    return 64 if queries < 2048 else 128


def _features_of_one(maker: Projection, queries: int) -> int:
    """Return heads × head size of the keys or values; of the queries if the weight makes only those."""
    letters = len(maker.leaf.letters)
    return (maker.made - queries) // 2 if letters == 3 else maker.made // letters
