"""The elements of operands that an element of a result is made from."""

from collections.abc import Sequence

from meshwright.program import _jaxprs as jaxprs
from meshwright.program._jaxprs import Equation
from meshwright.program._primitives import rule_of

Part = tuple[slice, ...]
"""A part of an array."""


def parts_of(eqn: Equation, out: int, index: tuple[int, ...]) -> list[Part]:
    """Return for each operand the part that an element of a result is made from, as far as it is known.

    Example:
      >>> eqn = jax.make_jaxpr(jnp.transpose)(jnp.ones((8, 4))).eqns[0]
      >>> mw.program._internal.parts_of(eqn, 0, (3, 7))
      [(slice(7, 8, None), slice(3, 4, None))]
    """
    shapes = list(map(jaxprs.shape_of, eqn.invars))
    if eqn.primitive.name == "concatenate":
        return _joined(eqn.params["dimension"], shapes, index)
    if eqn.primitive.name == "select_n":  # the predicate is finite, and the cases have one shape
        return [tuple(slice(i, i + 1) for i in index) if shape else () for shape in shapes]
    results = tuple(map(jaxprs.shape_of, eqn.outvars))
    rule = rule_of(eqn.primitive.name, eqn.params, tuple(shapes), results)
    letters = {
        dim[0]: (i, size)
        for dim, i, size in zip(rule.outputs[out], index, results[out], strict=True)
        if len(dim) == 1 and rule.is_known
    }
    return [
        tuple(_part(letters.get(dim[0]) if len(dim) == 1 else None, size) for dim, size in zip(dims, shape))  # noqa: B905
        for dims, shape in zip(rule.inputs, shapes, strict=True)
    ]


def _joined(dimension: int, shapes: Sequence[tuple[int, ...]], index: tuple[int, ...]) -> list[Part]:
    parts, start = [], 0
    for shape in shapes:
        inner = list(index)
        inner[dimension] -= start
        is_inside = 0 <= inner[dimension] < shape[dimension]
        parts.append(tuple(slice(i, i + 1) if is_inside else slice(0, 0) for i in inner))
        start += shape[dimension]
    return parts


def _part(element: tuple[int, int] | None, size: int) -> slice:
    """Return the slice of a dimension of some size, given an index in another one and that one's size."""
    if element is None or element[1] != size:
        return slice(None)
    return slice(element[0], element[0] + 1)
