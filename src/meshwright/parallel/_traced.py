"""The structure of a model, read from the notes of a walk through its jaxpr."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Any

import jax
from jax.sharding import AbstractMesh

from meshwright.base._internal import PyTree, tree
from meshwright.parallel._structure import GATES, SMALL_TABLE, STACKS, Dim, Dims, Group, Structure
from meshwright.parallel._trace import Array, Factor, Product, Walk
from meshwright.program._internal import program_of


def traced_structure(params: PyTree, function: Callable[..., Any], *arguments: PyTree) -> Structure:
    """Return the structure of `params` as `function(params, *arguments)` uses them. All may be abstract."""
    program, walk = program_of(_traced(function, tree.abstract(params), *tree.abstract(arguments))), Walk()
    arrays = [(value, walk.array(value).dims) for value in program.inputs]
    named = {}
    for name, (value, dims) in zip(tree.leaf_names(params), arrays, strict=False):
        named[name], walk.arrays[value] = dims, Array(dims, name)
    walk.marked["input"].extend(dim for _, dims in arrays[len(named) :] for dim in dims)
    walk.run(program)
    return Notes(walk, named).structure()


def _traced(function: Callable[..., Any], *arguments: PyTree) -> Any:
    """Return the jaxpr of a program as one device would run it, in which no dimension is split.

    A program that names devices, or computes while it is traced, can only be traced on its own mesh.
    """
    mesh, trace = jax.sharding.get_abstract_mesh(), jax.make_jaxpr(function)
    if not mesh.shape or not mesh.are_all_axes_auto:
        return trace(*arguments)
    alone = AbstractMesh((1,) * len(mesh.axis_names), mesh.axis_names, axis_types=mesh.axis_types)
    try:
        # JAX replaces a mesh by one of another size only if there is none in between.
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())), jax.sharding.use_abstract_mesh(alone):
            return trace(*arguments)
    # Values that JAX computes at once, such as diffrax's constants, need the real mesh.
    except Exception:
        return trace(*arguments)


class Notes:
    """The notes of a walk, read for the parameters."""

    def __init__(self, walk: Walk, params: Mapping[str, tuple[Product, ...]]):
        self.walk, self.flat = walk, walk.factors.flat
        # In the order of use, so that the result does not depend on how a tree is sorted.
        self.params = {name: params[name] for name in (*walk.weights, *params)}
        self.inner = self._inner()
        self.heads = self._heads()
        self.whole = self._whole()
        self.slices, self.joined = self._slices()
        self.read, self.written = self._groups(walk.read), self._groups(walk.written)
        self.rows = self._groups(factor for dim in walk.marked["rows"] for factor in dim)

    def structure(self) -> Structure:
        dims = {
            name: tuple(self._dim(products, d) for d in range(len(products)))
            for name, products in self.params.items()
        }
        own = {name: _own_inputs(axes) for name, axes in dims.items()}
        never = dict.fromkeys(set().union(*own.values()), "a width that feeds itself")
        dims = _with_gates(dims, set().union(*(own[name] for name in self.walk.repeated)))
        never |= dict.fromkeys(_stems(dims, self.walk.convolutions), "a stem of convolutions")
        return Structure(dims, frozenset(self.read ^ self.written), never)

    def _factors(self, dims: Iterable[Product]) -> set[Factor]:
        return {factor for dim in dims for factor in self.flat(dim)}

    def _inner(self) -> set[Factor]:
        """Return the factors that activations are contracted over with each other, and head sizes.

        If a slice is inner, so are the whole and its other slices: rotary positions cut a head into halves
        and join them again.
        """
        outer = self._factors(self.walk.marked["outer"])
        inner = self._factors(self.walk.marked["inner"])
        inner |= self._factors(other for first, other in self.walk.together if outer & set(self.flat(first)))
        parts: dict[Factor, set[Factor]] = defaultdict(set)
        for whole, part in self.walk.slices:
            if len(self.flat(whole)) == 1:
                parts[self.flat(whole)[0]] |= set(self.flat(part))
        num_inner = -1
        while len(inner) > num_inner:
            num_inner = len(inner)
            for whole, all_parts in parts.items():
                if all_parts <= inner or whole in inner:
                    inner |= {whole, *all_parts}
        return inner

    def _heads(self) -> set[Factor]:
        """Return the factors that count heads: before inner ones in a projection, or in a batch of dots."""
        dims = [dim for products in self.params.values() for dim in products]
        flats = [self.flat(dim) for dim in (*dims, *(part for _, part in self.walk.slices))]
        outer = [list(takewhile(lambda factor: factor not in self.inner, flat)) for flat in flats]
        pairs = zip(flats, outer, strict=True)
        before_inner = {factor for flat, heads in pairs if len(heads) < len(flat) for factor in heads}
        return before_inner | self._factors(self.walk.marked["outer"])

    def _whole(self) -> dict[Factor, str]:
        """Return the factors that are never split, with the reason."""
        marked = self.walk.marked
        trailing = {
            factor for products in self.params.values() for dim in products for factor in self.flat(dim)[1:]
        }
        experts = [first for first, other in self.walk.together if not self.inner & set(self.flat(other))]
        reasons = {
            "within a longer dimension": trailing - self.heads,
            "within a head": self.inner,
            "the input's features": self._factors(marked["input"]),
            "a small table": self._factors(dim for dim in marked["rows"] if self._size(dim) <= SMALL_TABLE),
            "indexed one by one": self._factors(marked["indexed"]),
            "experts": self._factors((*marked["experts"], *experts)),
            "layers": self._factors(marked["layers"]),
        }
        return {factor: reason for reason, factors in reasons.items() for factor in factors}

    def _slices(self) -> tuple[dict[Factor, list[Product]], dict[Factor, Factor]]:
        """Return the slices of factors, and for each sliced factor the one whose group it joins."""
        slices: dict[Factor, list[Product]] = defaultdict(list)
        joined: dict[Factor, Factor] = {}
        for whole, part in self.walk.slices:
            outer, inner = self.flat(whole), self.flat(part)
            if len(outer) == 1:
                slices[outer[0]].append(part)
                if inner[0] not in self.whole:
                    joined.setdefault(outer[0], inner[0])
        return slices, joined

    def _dim(self, products: tuple[Product, ...], d: int) -> Dim:
        flat = self.flat(products[d])
        if not flat:
            return Dim()
        group, why = self._group(flat[0]), self.whole.get(flat[0], "")
        # Added positions, or a kernel's height, are neither read nor written.
        used = group in self.read | self.written
        if why or not used:
            return Dim(kind=why if used or why in STACKS else "")
        if group not in self.heads:
            kind = "rows" if group in self.rows else "features"
            return Dim(group, self._pieces(products[d]), self._size(products[d]), kind)
        within = takewhile(lambda dim: self.inner >= set(self.flat(dim)), products[d + 1 :])
        features = math.prod(map(self._size, (products[d], *within)))
        return Dim(group, self._pieces(products[d]), features, "heads")

    def _group(self, factor: Factor) -> Factor:
        # The loop ends: a joined factor is smaller.
        while factor in self.joined:
            factor = self.joined[factor]
        return factor

    def _groups(self, factors: Iterable[Factor]) -> set[Factor]:
        return {self._group(self.flat((factor,))[0]) for factor in factors}

    def _pieces(self, product: Product) -> int:
        """Return the number of equal parts that a dimension can be split into."""
        flat = self.flat(product)
        if flat[0] in self.inner:
            return 1
        fused = [part for part in self.slices[flat[0]] if (self.inner | self.heads) & set(self.flat(part))]
        # Queries, keys and values are concatenated.
        if fused:
            return math.gcd(*map(self._pieces, fused))
        counted = list(takewhile(lambda factor: factor in self.heads, flat)) or flat[:1]
        return math.prod(map(self.walk.factors.size, counted))

    def _size(self, product: Product) -> int:
        return math.prod(map(self.walk.factors.size, self.flat(product)))


def _stems(dims: Mapping[str, Dims], convolutions: set[str]) -> set[Group]:
    """Return the groups inside the few convolutions that precede a model of other weights."""
    touching: dict[Group, Counter[bool]] = defaultdict(Counter)
    for name, axes in dims.items():
        for group in _groups(axes) if len(axes) > 1 else ():
            touching[group][name in convolutions] += 1
    foreign = {group for group, count in touching.items() if count[False] > count[True]}
    stems = (_groups(dims[name]) for name in convolutions)
    return {group for groups in stems if groups & foreign for group in groups - foreign}


def _own_inputs(dims: Dims) -> set[Group]:
    """Return the groups that a weight both reads and writes, as in a recurrent network.

    A split group of this kind would be sent at every step.
    """
    counts = Counter(dim.group for dim in dims if dim.group is not None)
    return {group for group, times in counts.items() if times > 1}


def _with_gates(dims: Mapping[str, Dims], recurrent: set[Group]) -> dict[str, Dims]:
    """Return the dimensions with the gates of recurrent networks as groups of their own.

    Gates are side by side in a dimension that is several times as large as the state.
    """
    sizes = {
        group: {dim.features for axes in dims.values() for dim in axes if dim.group == group}
        for group in recurrent
    }

    def with_gates(dim: Dim) -> Dim:
        is_gates = dim.group in recurrent and dim.features > min(sizes[dim.group])
        return replace(dim, group=(GATES, dim.group), kind=GATES) if is_gates else dim

    return {name: tuple(map(with_gates, axes)) for name, axes in dims.items()}


def _groups(dims: Dims) -> set[Group]:
    return {dim.group for dim in dims if dim.group is not None}
