"""Every dimension of a model followed through its jaxpr, with notes of what happens to it.

Dimensions that meet, because they are added, contracted or reshaped into each other, become one
(`_factors.py`). Noted are the weights that read and write them, and which are heads, experts, stacked
layers or rows of tables. `_traced.py` makes the structure of a model of it. Names play no part.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from meshwright.sharding._factors import Factor, Factors, Product


class Value(NamedTuple):
    """What is known of one array."""

    dims: tuple[Product, ...]
    weight: str | None = None
    """The parameter that it is, perhaps cast, transposed or sliced."""


class Walk:
    """A walk through a jaxpr, and the notes taken on it."""

    def __init__(self) -> None:
        self.factors = Factors()
        self.weights: list[str] = []
        """Weights in the order of their first use."""
        self.convolutions: set[str] = set()
        """Those of the weights that are slid over space."""
        self.read: dict[Factor, set[str]] = defaultdict(set)
        """The weights that are contracted or looked up over a factor."""
        self.written: dict[Factor, set[str]] = defaultdict(set)
        """The weights that bring a factor forth."""
        self.marked: dict[str, list[Product]] = defaultdict(list)
        """Dimensions known as `input`, `layers`, `experts`, `rows`, or `indexed`; and, where two activations
        are multiplied, as in attention, `inner`, contracted, or `outer`, a batch of such products."""
        self.together: list[tuple[Product, Product]] = []
        """Pairs over which a weight is contracted at once: heads and head size, or experts and features."""
        self.slices: list[tuple[Product, Product]] = []
        """Dimensions, each with another that is a slice of it."""

    def fresh(self, shape: Iterable[int]) -> Value:
        return Value(tuple(self.factors.new(size) for size in shape))

    def unify(self, some: Iterable[Product], others: Iterable[Product]) -> None:
        for one, other in zip(some, others, strict=True):
            self.factors.unify(one, other)

    def weigh(self, weight: str, *, reads: list[Product], writes: list[Product]) -> None:
        """Note that `weight` is contracted over, or looked up in, some dimensions and brings forth others."""
        self.weights.append(weight)
        for record, dims in ((self.read, reads), (self.written, writes)):
            for factor in (dim[0] for dim in dims if dim):
                record[factor].add(weight)

    def run(self, jaxpr: Any, arguments: list[Value]) -> list[Value]:
        """Return the values of the outputs of `jaxpr` for `arguments`."""
        known: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))

        def value(atom: Any) -> Value:
            literal = hasattr(atom, "val")
            return self.fresh(atom.aval.shape) if literal or atom not in known else known[atom]

        for eqn in jaxpr.eqns:
            inputs = [value(atom) for atom in eqn.invars]
            outputs = HANDLERS.get(eqn.primitive.name, _other)(self, eqn, inputs)
            known.update(zip(eqn.outvars, outputs, strict=True))
        return [value(atom) for atom in jaxpr.outvars]


def _dot(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    contracted, batch = eqn.params["dimension_numbers"]
    return [_contract(walk, inputs[0], inputs[1], contracted, batch)]


def _contract(
    walk: Walk, left: Value, right: Value, contracted: tuple[Any, Any], batch: tuple[Any, Any]
) -> Value:
    walk.unify(_at(left, contracted[0]), _at(right, contracted[1]))
    walk.unify(_at(left, batch[0]), _at(right, batch[1]))
    free = []
    for side, value, other in ((0, left, right), (1, right, left)):
        rest = [dim for d, dim in enumerate(value.dims) if d not in {*contracted[side], *batch[side]}]
        free.extend(rest)
        if value.weight and not other.weight:
            walk.weigh(value.weight, reads=_at(value, contracted[side]), writes=rest)
            walk.marked["experts"].extend(_at(value, batch[side]))
            at_once = _at(value, sorted(contracted[side]))
            walk.together.extend((at_once[0], other) for other in at_once[1:])
    if not left.weight and not right.weight:
        walk.marked["inner"].extend(_at(left, contracted[0]))
        walk.marked["outer"].extend(_at(left, batch[0]))
    return Value((*_at(left, batch[0]), *free))


def _ragged_dot(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    """Rows of many experts at once: [rows, in] × [experts, in, out] -> [rows, out]."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    groups = list(numbers.rhs_group_dimensions)
    contracted, batch = numbers.dot_dimension_numbers
    if not groups or len(eqn.outvars[0].aval.shape) != len(inputs[0].dims):
        return [walk.fresh(eqn.outvars[0].aval.shape)]
    left, right = inputs[:2]
    walk.marked["experts"].extend(_at(right, groups))
    kept = [d for d in range(len(right.dims)) if d not in groups]
    rest = Value(tuple(_at(right, kept)), right.weight)
    renumbered = [tuple(kept.index(d) for d in dims) for dims in (contracted[1], batch[1])]
    return [_contract(walk, left, rest, (contracted[0], renumbered[0]), (batch[0], renumbered[1]))]


def _convolution(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    numbers, (image, kernel) = eqn.params["dimension_numbers"], inputs
    out = list(walk.fresh(eqn.outvars[0].aval.shape).dims)
    walk.factors.unify(out[numbers.out_spec[0]], image.dims[numbers.lhs_spec[0]])
    if eqn.params["feature_group_count"] == eqn.params["batch_group_count"] == 1:
        features_out, features_in = _at(kernel, numbers.rhs_spec[:2])
        walk.factors.unify(features_in, image.dims[numbers.lhs_spec[1]])
        walk.factors.unify(features_out, out[numbers.out_spec[1]])
        if kernel.weight:
            walk.weigh(kernel.weight, reads=[features_in], writes=[features_out])
            walk.convolutions.add(kernel.weight)
    return [Value(tuple(out))]


def _gather(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    array, indices = inputs
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [d for d in range(len(array.dims)) if d not in dropped]
    out = list(walk.fresh(eqn.outvars[0].aval.shape).dims)
    for d, source in zip(numbers.offset_dims, kept, strict=True):
        if sizes[source] == eqn.invars[0].aval.shape[source]:
            walk.factors.unify(out[d], array.dims[source])
    looked_up = [d for d in range(len(out)) if d not in numbers.offset_dims]
    walk.unify((out[d] for d in looked_up), indices.dims[:-1])
    if not looked_up:  # one slice, as of the i-th layer
        return [Value(tuple(out), array.weight)]
    if array.weight:
        rows = _at(array, numbers.collapsed_slice_dims)
        walk.weigh(array.weight, reads=rows, writes=_at(array, kept))
        walk.marked["rows"].extend(rows)
    return [Value(tuple(out))]


def _reshape(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    shape = eqn.outvars[0].aval.shape
    return [Value(walk.factors.reshape(inputs[0].dims, shape), inputs[0].weight)]


def _transpose(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    return [Value(tuple(_at(inputs[0], eqn.params["permutation"])), inputs[0].weight)]


def _broadcast(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    shape, value = eqn.outvars[0].aval.shape, inputs[0]
    out = list(walk.fresh(shape).dims)
    for d, source in zip(eqn.params["broadcast_dimensions"], range(len(value.dims)), strict=True):
        if eqn.invars[0].aval.shape[source] == shape[d]:
            out[d] = value.dims[source]
    return [Value(tuple(out), value.weight)]


def _drop(parameter: str) -> Callable[[Walk, Any, list[Value]], list[Value]]:
    def handle(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
        kept = [d for d in range(len(inputs[0].dims)) if d not in eqn.params[parameter]]
        return [Value(tuple(_at(inputs[0], kept)), inputs[0].weight) for _ in eqn.outvars]

    return handle


def _scan(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    """What is carried and what is sliced is read off the shapes: JAX's parameters for it change."""
    body = _open(eqn.params["jaxpr"])
    inside = []
    for value, outer, inner in zip(inputs, eqn.invars, body.invars, strict=True):
        sliced = len(outer.aval.shape) > len(inner.aval.shape)
        inside.append(Value(value.dims[1:], value.weight) if sliced else value)
        if sliced and value.weight:
            walk.marked["layers"].append(value.dims[0])
    outputs = walk.run(body, inside)
    stacked = [
        len(outer.aval.shape) > len(inner.aval.shape)
        for outer, inner in zip(eqn.outvars, body.outvars, strict=True)
    ]
    num_whole = sum(a is b for a, b in zip(inputs, inside, strict=True))
    num_carried = len(stacked) - sum(stacked)
    for before, after in zip(inside[num_whole - num_carried : num_whole], outputs, strict=False):
        walk.unify(before.dims, after.dims)
    times = walk.fresh(eqn.outvars[-1].aval.shape[:1]).dims if any(stacked) else ()
    return [
        Value((*times, *value.dims)) if is_stacked else Value(value.dims)
        for value, is_stacked in zip(outputs, stacked, strict=True)
    ]


def _while(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    arguments = inputs[eqn.params["cond_nconsts"] :]
    outputs = walk.run(_open(eqn.params["body_jaxpr"]), arguments)
    for before, after in zip(arguments[eqn.params["body_nconsts"] :], outputs, strict=True):
        walk.unify(before.dims, after.dims)
    return outputs


def _cond(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    first, *others = (walk.run(_open(branch), inputs[1:]) for branch in eqn.params["branches"])
    for other in others:
        for one, another in zip(first, other, strict=True):
            walk.unify(one.dims, another.dims)
    return first


def _other(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    """A call is followed. Any other operation is taken to keep each dimension whose size it keeps."""
    for body in _bodies(eqn):
        if [var.aval.shape for var in body.invars] == [var.aval.shape for var in eqn.invars]:
            return walk.run(body, inputs)
    return [_alike(walk, eqn, inputs, var.aval.shape) for var in eqn.outvars]


def _alike(walk: Walk, eqn: Any, inputs: list[Value], shape: tuple[int, ...]) -> Value:
    out = walk.fresh(shape)
    for value, var in zip(inputs, eqn.invars, strict=True):
        if len(value.dims) != len(shape):
            continue
        for mine, theirs, size, their_size in zip(out.dims, value.dims, shape, var.aval.shape, strict=True):
            if size == their_size:
                walk.factors.unify(mine, theirs)
            elif eqn.primitive.name in ("slice", "split", "dynamic_slice", "concatenate"):
                _note_slice(walk, *((mine, theirs) if size > their_size else (theirs, mine)))
    arrays = [(value, var.aval.size) for value, var in zip(inputs, eqn.invars, strict=True) if value.dims]
    if arrays and all(value.weight for value, _ in arrays):
        return Value(out.dims, max(arrays, key=lambda array: array[1])[0].weight)
    return out


def _note_slice(walk: Walk, whole: Product, part: Product) -> None:
    if part:
        walk.slices.append((whole, part))
    else:
        walk.marked["indexed"].append(whole)


def _unstack(walk: Walk, eqn: Any, inputs: list[Value]) -> list[Value]:
    walk.marked["indexed"].append(inputs[0].dims[eqn.params["axis"]])
    kept = [d for d in range(len(inputs[0].dims)) if d != eqn.params["axis"]]
    return [Value(tuple(_at(inputs[0], kept)), inputs[0].weight) for _ in eqn.outvars]


def _bodies(eqn: Any) -> Iterator[Any]:
    return (_open(value) for value in eqn.params.values() if hasattr(_open(value), "eqns"))


def _open(jaxpr: Any) -> Any:
    """Return the jaxpr in a closed one; JAX 0.12 has but one class for both."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def _at(value: Value, dims: Iterable[int]) -> list[Product]:
    return [value.dims[d] for d in dims]


HANDLERS: dict[str, Callable[[Walk, Any, list[Value]], list[Value]]] = {
    "argmax": _drop("axes"),
    "argmin": _drop("axes"),
    "broadcast_in_dim": _broadcast,
    "cond": _cond,
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "gather": _gather,
    "ragged_dot_general": _ragged_dot,
    "reduce_and": _drop("axes"),
    "reduce_max": _drop("axes"),
    "reduce_min": _drop("axes"),
    "reduce_or": _drop("axes"),
    "reduce_prod": _drop("axes"),
    "reduce_sum": _drop("axes"),
    "reshape": _reshape,
    "scan": _scan,
    "squeeze": _drop("dimensions"),
    "transpose": _transpose,
    "unstack": _unstack,
    "while": _while,
}
"""What to do at primitives that rearrange dimensions. JAX's other ones keep them in place."""
