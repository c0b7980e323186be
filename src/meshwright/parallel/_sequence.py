"""Sequence parallelism for a loss that states no split of its activations (Korthikanti et al., 2022).

Between the products that the axis `tensor` splits, activations are split by position: norms, additions and
what layers keep for the gradient. A loss is traced, and its products with split weights are found by the walk
of `_trace.py`:

    columns  x [B, T, D] × w [D, F / n]  -> [B, T, F / n]     x is gathered before
    rows     x [B, T, F / n] × w [F / n, D] -> [B, T / n, D]  the sum over devices is scattered by position
    a table  w [V / n, D] at [B, T]      -> [B, T / n, D]     likewise

The loss then runs with constraints at these places, as if its author had written them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree, tree
from meshwright.parallel._activations import microbatch_axes
from meshwright.parallel._axes import DATA, TENSOR
from meshwright.parallel._infer_rules import InferredRule
from meshwright.parallel._layout import Layout, axes_of, canonical
from meshwright.parallel._trace import Factor, Walk
from meshwright.program._internal import (
    Operation,
    Rule,
    as_function,
    bind,
    bind_body,
    evaluate,
    jaxprs,
    program_of,
)
from meshwright.program._internal import walk as operations_of


class Constraints(NamedTuple):
    """Constraints on an operand and on the result of one equation."""

    operand: int
    """Number of the operand."""
    inputs: tuple[P, ...]
    """Constraints on the operand, one after the other."""
    outputs: tuple[P, ...]
    """Constraints on the result."""


Places = Mapping[tuple[int, ...], Constraints]
"""Constraints by the identities of an equation and of the equations around it, the outermost first."""


class Replay:
    """The constraints, as a function of an equation and its operands for `evaluate`.

    Calls that hold a constrained equation are inlined. Constraints inside anything but calls, scans and
    `jax.checkpoint` are left out.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._around = {chain[:i] for chain in places for i in range(1, len(chain))}
        self._brought: dict[tuple[int, tuple[P, ...]], tuple[Any, Any]] = {}
        """Operands with and without their constraints, so that products with the same factor share them."""

    def __call__(self, eqn: Any, operands: list[Any], callers: tuple[int, ...] = ()) -> Sequence[Any]:
        chain = (*callers, id(eqn))
        if constraints := self._places.get(chain):
            operand = constraints.operand
            operands[operand] = self._bring(operands[operand], constraints.inputs)
            return [_constrained(x, constraints.outputs) for x in bind(eqn, operands)]
        has_body = jaxprs.is_call(eqn) or jaxprs.is_scan(eqn) or jaxprs.is_checkpoint(eqn)
        if chain not in self._around or not has_body:
            return bind(eqn, operands)
        body = partial(evaluate, jaxprs.body_of(eqn), results=partial(self, callers=chain))
        if jaxprs.is_call(eqn) and not jaxprs.is_stack(eqn):
            return body(operands)
        return bind_body(eqn, operands, lambda *inputs: body(inputs))

    def _bring(self, x: Any, specs: tuple[P, ...]) -> Any:
        if (id(x), specs) not in self._brought:
            # While `x` lives, no other object has its id.
            self._brought[id(x), specs] = _constrained(x, specs), x
        return self._brought[id(x), specs][0]


def _constrained(x: Any, specs: tuple[P, ...]) -> Any:
    for spec in specs:
        x = jax.lax.with_sharding_constraint(x, spec)
    return x


class Product(NamedTuple):
    """A product or lookup with a weight that the axis `tensor` splits."""

    operation: Operation
    weight: int
    """Number of the operand that is the weight."""
    dim: int
    """The dimension of the weight that is split."""
    rule: Rule

    @property
    def letter(self) -> int:
        return self.rule.inputs[self.weight][self.dim][0]

    @property
    def is_lookup(self) -> bool:
        return self.operation.is_lookup

    @property
    def is_summed(self) -> bool:
        return self.letter in self.rule.summed


def splitting_sequences(
    function: Callable[..., Any], layout: Layout, batch_at: int = 1
) -> Callable[..., Any]:
    """Return `function` with its activations split by position over the axis `tensor`.

    Without that axis it is returned as it is. Without `infer_rules` among the rules, or if the function
    itself states a split over `tensor`, no activation is split. Some weights of loops are gathered; see
    `gathered`.
    """
    ways = layout.mesh.shape.get(TENSOR, 1)
    others = [size for axis, size in layout.mesh.shape.items() if axis not in (DATA, TENSOR)]
    is_inferred = any(isinstance(rule, InferredRule) for rule in layout.rules)
    is_gathered = ways in others and layout.mesh.size > ways**2
    if ways == 1 or not (is_inferred or is_gathered):
        return function

    def called(params: PyTree, *arguments: Any) -> Any:
        inner = jax.jit(function)
        traced = inner.trace(params, *arguments)
        start = len(jax.tree.leaves((params, *arguments[: batch_at - 1])))
        batch = jax.tree.leaves(arguments[batch_at - 1])
        products = _Products(traced.jaxpr, params, slice(start, start + len(batch)), layout)
        places, specs = (
            products.constraints() if is_inferred else {},
            products.gathered() if is_gathered else {},
        )
        if not places and not specs:
            # JAX does not trace `inner` again.
            return inner(params, *arguments)
        weights = [
            jax.lax.with_sharding_constraint(x, specs[name]) if name in specs else x
            for name, x in tree.named_leaves(params).items()
        ]
        return as_function(traced.jaxpr, traced.out_info, Replay(places))(weights, *arguments)

    return called


class _Products:
    """The products of a program, and the constraints around them."""

    def __init__(self, jaxpr: Any, params: PyTree, batch: slice, layout: Layout) -> None:
        self._layout, self._walk = layout, Walk()
        self._ways = layout.mesh.shape[TENSOR]
        of_batch = [axis for entry in layout.batch_sharding.spec for axis in axes_of(entry)]
        self._batch_axes = tuple(axis for axis in of_batch if axis not in microbatch_axes())
        self._batch_ways = math.prod(layout.mesh.shape[axis] for axis in self._batch_axes)
        self._program = program_of(jaxpr)
        self._weights = tree.named_leaves(tree.abstract(params))
        inputs = dict(zip(self._weights, self._program.inputs, strict=False))
        arrays = {name: self._walk.array(value) for name, value in inputs.items()}
        for name, value in inputs.items():
            self._walk.arrays[value] = arrays[name]._replace(weight=name)
        rows = [self._walk.array(value).dims[:1] for value in self._program.inputs[batch]]
        self._walk.run(self._program)
        flat = self._walk.factors.flat
        self._examples = {flat(dims[0])[0] for dims in rows if dims and dims[0]}
        self._split = {name: self._split_factor(name, array.dims) for name, array in arrays.items()}

    def constraints(self) -> Places:
        """Return the constraints around each product, by the identities of its equation and its callers."""
        if any(map(self._is_stated, operations_of(self._program))):
            return {}
        products = list(self._products())
        lengths = {self._length(product) for product in products if product.is_summed} - {None}
        places = {}
        for product in products:
            if self._length(product) in lengths:
                chain = tuple(map(id, (*product.operation.callers, product.operation.eqn)))
                places[chain] = self._constraints(product)
        return places

    def gathered(self) -> Mapping[str, P]:
        """Return, by name, how to split weights that each iteration of a loop reads: over `tensor` alone.

        If such weights, or several side by side, are split along two dimensions by axes of one size, and the
        mesh has another axis, a constraint on what comes out of the loop makes XLA compute wrong gradients
        (jax 0.10 and 0.12, Shardy and GSPMD). Gathered before the loop, weights are also sent only once.
        """
        specs = {}
        for name in sorted(self._walk.repeated):
            spec = self._layout.spec(f"params/{name}", self._weights[name])
            if any(entry and TENSOR not in axes_of(entry) for entry in spec):
                specs[name] = P(*(entry if TENSOR in axes_of(entry) else None for entry in spec))
        return specs

    def _is_stated(self, operation: Operation) -> bool:
        """Return whether an operation is the author's own split of activations over `tensor`."""
        if not operation.is_constraint or self._walk.array(operation.inputs[0]).weight:
            return False
        spec = jaxprs.constraint_of(operation.eqn)
        return any(TENSOR in axes_of(entry) for entry in spec if entry is not P.UNCONSTRAINED)

    def _split_factor(self, name: str, dims: Sequence[Any]) -> Factor | None:
        """Return the factor of a weight that `tensor` splits."""
        spec = self._layout.spec(f"params/{name}", self._weights[name])
        split = [d for d, entry in enumerate(spec) if axes_of(entry)[:1] == (TENSOR,)]
        flat = self._walk.factors.flat(dims[split[0]]) if split else []
        return flat[0] if flat else None

    def _products(self) -> Iterator[Product]:
        for operation in operations_of(self._program):
            is_lookup = operation.is_lookup
            if not is_lookup and operation.primitive.product != "dot":
                continue
            arrays = [self._walk.array(value) for value in operation.inputs[: 1 if is_lookup else 2]]
            weights = [i for i, array in enumerate(arrays) if array.weight]
            if len(weights) != 1:
                continue
            array, rule = arrays[weights[0]], operation.rule
            factor = self._split.get(array.weight or "")
            dims = [d for d, dim in enumerate(array.dims) if self._walk.factors.flat(dim)[:1] == [factor]]
            product = Product(operation, weights[0], dims[0], rule) if dims else None
            if product and rule.inputs[weights[0]][dims[0]] and (not is_lookup or product.is_summed):
                yield product

    def _example_dim(self, product: Product) -> int | None:
        """Return the dimension of a product's result that counts examples."""
        dims = self._walk.array(product.operation.outputs[0]).dims
        flats = map(self._walk.factors.flat, dims)
        counting = [d for d, flat in enumerate(flats) if flat and flat[0] in self._examples]
        return counting[0] if counting and self._fits(product, counting[0], self._batch_ways) else None

    def _length(self, product: Product) -> tuple[Factor, ...] | None:
        """Return the factors of the positions of a product's result, if it has examples and positions."""
        dim = self._position_dim(product)
        if dim is None:
            return None
        return tuple(self._walk.factors.flat(self._walk.array(product.operation.outputs[0]).dims[dim]))

    def _position_dim(self, product: Product) -> int | None:
        examples = self._example_dim(product)
        weight = {letter for dim in product.rule.inputs[product.weight] for letter in dim}
        dims = product.rule.outputs[0]
        free = [d for d, dim in enumerate(dims) if d != examples and dim and weight.isdisjoint(dim)]
        fits = bool(free) and self._fits(product, free[0], self._ways)
        return free[0] if examples is not None and fits else None

    def _fits(self, product: Product, dim: int, ways: int) -> bool:
        return product.operation.outputs[0].shape[dim] % ways == 0

    def _constraints(self, product: Product) -> Constraints:
        """Return the constraints of a product on its activations."""
        result = product.rule.outputs[0]
        examples, positions = self._example_dim(product), self._position_dim(product)
        assert examples is not None
        assert positions is not None
        axes = dict.fromkeys(result[examples], self._batch_axes)
        split = axes | dict.fromkeys(result[positions], (TENSOR,))
        features = axes | {product.letter: (TENSOR,)}
        if product.is_lookup:
            table = P(
                *(P.UNCONSTRAINED if d == product.dim else None for d in range(len(product.rule.inputs[0])))
            )
            return Constraints(0, (table,), (_spec(result, split),))
        activations = product.rule.inputs[1 - product.weight]
        if product.is_summed:
            return Constraints(1 - product.weight, (_spec(activations, features),), (_spec(result, split),))
        inputs = (_spec(activations, split), _spec(activations, axes))
        return Constraints(1 - product.weight, inputs, (_spec(result, features),))


def _spec(dims: Sequence[tuple[int, ...]], axes: Mapping[int, tuple[str, ...]]) -> P:
    return canonical(P(*(next((axes[letter] for letter in dim if letter in axes), None) for dim in dims)))
