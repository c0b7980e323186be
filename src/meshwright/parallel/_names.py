"""Facts about parameters that names and shapes alone show: words, stacked dimensions, features."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Path = tuple[str, ...]

ARRAYS = {"kernel", "weight", "w", "embedding", "bias", "b", "scale"}
"""Names that frameworks give to the arrays of a layer; the name of the layer comes before."""
LETTERS = {
    "q": "q", "query": "q", "wq": "q", "k": "k", "key": "k", "wk": "k", "v": "v", "value": "v", "wv": "v",
    "kv": "kv", "wkv": "kv", "qkv": "qkv", "wqkv": "qkv",
}  # fmt: skip
"""Words in names of layers that make queries, keys or values, and which of these they make."""
FUSED = ({"c", "attn"}, {"in", "proj"})
"""Words of layers that make all three if they are in an attention, in GPT-2 and PyTorch."""
ATTENTIONS = {"attn", "attention"}
OUTPUTS = {"o", "wo", "out", "output", "proj", "dense", "vec"}
WIDENING = {"up", "gate", "wi", "intermediate"}
EXPERTS = {"expert", "experts", "moe"}
VECTORS = {"bias", "scale", "norm"}
TABLES = {"embed", "embedding", "embeddings", "embedder", "wte", "wpe", "shared"}
POSITIONS = {"wpe", "position", "positions", "positional", "pos", "type", "segment"}


@dataclass(frozen=True)
class Leaf:
    """An array of the parameters."""

    name: str
    shape: tuple[int, ...]
    stacks: tuple[str, ...] = ()
    """Meaning of its leading dimensions: `layers`, `experts`."""

    @cached_property
    def path(self) -> Path:
        path = tuple(self.name.replace("%2F", "/").split("/"))  # Haiku's names have slashes
        ends_as_nnx = path[-1] == "value" and len(path) > 1 and path[-2] in ARRAYS
        return path[:-1] if ends_as_nnx else path

    @cached_property
    def layer(self) -> Path:
        """The path without a last component such as `kernel`: `…/query/kernel` -> `…/query`."""
        return self.path[:-1] if self.path[-1] in ARRAYS else self.path

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the layer's name: `q_proj` and `QProj` -> q, proj."""
        return words_of(self.layer[-1:])

    @cached_property
    def features(self) -> tuple[int, ...]:
        """The dimensions that are neither stacked nor of size 1."""
        return tuple(d for d in range(len(self.stacks), len(self.shape)) if self.shape[d] > 1)

    @property
    def ends(self) -> tuple[int, int]:
        """The input and output dimensions of a weight.

        The other dimensions of a convolution's kernel are space. Kernels are stored as [height, width, in,
        out] or as [out, in, height, width].
        """
        first, second = self.features[:2]
        before_last, last = self.features[-2:]
        space_last = self.shape[first] * self.shape[second] > self.shape[before_last] * self.shape[last]
        return (second, first) if space_last else (before_last, last)

    @property
    def is_weight(self) -> bool:
        """True if it maps features to features. A bias for each feature of each head does not."""
        return len(self.features) > 1 and not (self.words | {self.path[-1]}) & VECTORS

    @property
    def is_table(self) -> bool:
        """True if its rows are looked up."""
        return len(self.features) == 2 and (self.path[-1] == "embedding" or bool(self.words & TABLES))

    @cached_property
    def letters(self) -> frozenset[str]:
        """The letters of q, k and v that it makes."""
        if self.words in FUSED and words_of(self.path) & ATTENTIONS:
            return frozenset("qkv")
        return frozenset(letter for word in self.words for letter in LETTERS.get(word, ""))


def words_of(path: Iterable[str]) -> frozenset[str]:
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", " ".join(path))
    return frozenset(re.findall("[a-z]+", spaced.lower()))


def leaves_of(arrays: Mapping[str, Any]) -> list[Leaf]:
    """Return the arrays with their stacked dimensions recognised."""
    leaves = [Leaf(name, tuple(x.shape)) for name, x in arrays.items()]
    layers = {
        leaf.name for members in by_prefix(leaves).values() if _are_stacked(members) for leaf in members
    }
    leaves = [Leaf(x.name, x.shape, ("layers",) if x.name in layers else ()) for x in leaves]
    routers = _routers(leaves)
    return [Leaf(x.name, x.shape, (*x.stacks, "experts")) if _are_experts(x, routers) else x for x in leaves]


def by_prefix(leaves: Iterable[Leaf]) -> dict[Path, list[Leaf]]:
    """Return the leaves below each node of the tree."""
    below: dict[Path, list[Leaf]] = defaultdict(list)
    for leaf in leaves:
        for length in range(len(leaf.path)):
            below[leaf.path[:length]].append(leaf)
    return below


def _are_stacked(members: list[Leaf]) -> bool:
    """Return whether layers are stacked for a scan: all have one more leading dimension, of equal size."""
    shapes = [leaf.shape for leaf in members]
    if any(len(shape) < 2 or shape[0] != shapes[0][0] for shape in shapes) or shapes[0][0] == 1:
        return False
    matrices = {shape[1:] for shape in shapes if len(shape) == 3}
    has_vectors = any(len(shape) == 2 for shape in shapes)
    pairs = any((b, a) in matrices for a, b in matrices if a != b)
    return bool(matrices) and (has_vectors or pairs) and not all(words_of(x.path) & EXPERTS for x in members)


def _routers(leaves: list[Leaf]) -> set[tuple[Path, int, int]]:
    """Return (path above the layer, rows, columns) of each matrix.

    A matrix may be a router that chooses experts.
    """
    matrices = (leaf for leaf in leaves if leaf.is_weight and len(leaf.features) == 2)
    return {
        (leaf.layer[:-1], leaf.shape[leaf.features[0]], leaf.shape[leaf.features[1]]) for leaf in matrices
    }


def _are_experts(leaf: Leaf, routers: set[tuple[Path, int, int]]) -> bool:
    rest = leaf.shape[len(leaf.stacks) :]
    if len(rest) < 3:
        return False
    above = (leaf.layer[:-1], leaf.layer[:-2])
    routed = any((path, width, rest[0]) in routers for path in above for width in rest[1:])
    return routed or bool(words_of(leaf.path) & EXPERTS)
