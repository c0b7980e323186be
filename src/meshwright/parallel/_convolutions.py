"""Convolutions rewritten where XLA computes wrong sums on a mesh of several axes.

If the operands of some convolutions are split over some mesh axes but not over others, XLA also sums over
the devices that repeat each other: the result is too large by the size of the other axes
(`docs/upstream-convolution-gradients.md`). This happens in two cases. The first is the gradient of the
kernel of a depthwise or grouped convolution, which has a `batch_group_count`: it is rewritten so that each
device computes an explicit part. The second is any convolution whose image or window is split: these
dimensions are kept whole, as they are unless something asks for a split.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import PartitionSpec as P

from meshwright.errors import LayoutError
from meshwright.parallel._layout import Layout, axes_of
from meshwright.parallel._stages import layer_by_layer
from meshwright.program._internal import (
    Convolution,
    as_function,
    bind,
    convolution_of,
    evaluate,
    jaxprs,
    replacing,
)

T = TypeVar("T")


class Axis(NamedTuple):
    """A mesh axis that is larger than 1."""

    size: int
    """Number of devices along the axis."""
    splits_batch: bool
    """True if the axis splits the batch."""


Axes = Mapping[str, Axis]


def mended(jaxpr: Any, layout: Layout) -> Any:
    """Return an equivalent closed jaxpr without convolutions that XLA computes wrongly.

    `jaxpr` if it has none. Call it, and trace its result, inside the context of the layout's mesh.
    """
    splitting = [axis for entry in layout.batch_sharding.spec for axis in axes_of(entry)]
    sizes = {name: size for name, size in layout.mesh.shape.items() if size > 1}
    in_order = sorted(sizes, key=lambda name: splitting.index(name) if name in splitting else len(splitting))
    axes = {name: Axis(sizes[name], name in splitting) for name in in_order}
    if len(axes) > 1 and any(map(_is_convolution, jaxprs.equations(jaxpr))):
        jaxpr = jaxprs.map_equations(jaxpr, lambda eqn: _mended_equation(eqn, axes))
    if layout.num_stages > 1 and any(map(jaxprs.is_stack, jaxprs.equations(jaxpr))):
        jaxpr = _unstacked(jaxpr)
    return jaxpr


def _unstacked(jaxpr: Any) -> Any:
    """Return a closed jaxpr with the stacks of layers of its calls sent layer by layer."""
    results = replacing(jaxprs.is_stack, lambda eqn, operands: layer_by_layer(eqn)(*operands))
    return jax.make_jaxpr(lambda *arguments: evaluate(jaxpr, arguments, results))(*jaxprs.avals_of(jaxpr))


def adding_right(function: Callable[..., T], layout: Layout) -> Callable[..., T]:
    """Return `function` with its convolutions `mended` when it is traced."""

    def called(*arguments: Any) -> T:
        inner = jax.jit(function)
        traced = inner.trace(*arguments)
        jaxpr = mended(traced.jaxpr, layout)
        if jaxpr is traced.jaxpr:
            return inner(*arguments)  # JAX does not trace it again
        return as_function(jaxpr, traced.out_info)(*arguments)

    return called


def _mended_equation(eqn: Any, axes: Axes) -> Any:
    if not jaxprs.holds(eqn, _is_convolution):
        return eqn
    if convolution := convolution_of(eqn):
        is_whole = convolution.batch_groups == 1
        mended = _whole_in_space(eqn, convolution) if is_whole else _by_parts(eqn, convolution, axes)
        call = jax.make_jaxpr(jax.jit(mended))(*(var.aval for var in eqn.invars)).eqns[0]
        return call.replace(invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info)
    if jaxprs.is_mapped(eqn):  # it splits by itself over the axes that it names
        _check_manual(eqn, axes)
        return eqn
    return jaxprs.map_inside(eqn, lambda inner: _mended_equation(inner, axes))


def _whole_in_space(eqn: Any, dims: Convolution) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return a convolution in which no device has only a part of an image or a window."""

    def whole(x: jax.Array, order: tuple[int, ...]) -> jax.Array:
        spec = P(*(P.UNCONSTRAINED if d in order[:2] else None for d in range(x.ndim)))
        return jax.lax.with_sharding_constraint(x, spec)

    def called(image: jax.Array, kernel: jax.Array) -> jax.Array:
        (out,) = bind(eqn, (whole(image, dims.image), whole(kernel, dims.kernel)))
        return whole(out, dims.result)

    return called


def _by_parts(eqn: Any, dims: Convolution, axes: Axes) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return a convolution in which each device computes a part of the sum, or some of the groups.

    In a gradient the sum runs over the examples. These and the channels are split already, so only the sum
    itself moves data.
    """
    (batch, summed, *_), (made, contracted, *_), (_, features, *_), groups = dims
    of_sum, of_groups = _dealt_out(axes, eqn.invars[0].aval.shape[summed], groups)

    def part(image: jax.Array, kernel: jax.Array) -> jax.Array:
        left = groups // math.prod(axes[axis].size for axis in of_groups)
        (out,) = bind(eqn, (image, kernel), {"batch_group_count": left})
        return jax.lax.psum(out, of_sum)

    def spec(splits: Mapping[int, tuple[str, ...]]) -> P:
        return P(*(splits.get(d) for d in range(len(dims.image))))

    return jax.shard_map(
        part,
        in_specs=(spec({summed: of_sum, batch: of_groups}), spec({contracted: of_sum, made: of_groups})),
        out_specs=spec({features: of_groups}),
        check_vma=False,
    )


def _dealt_out(axes: Axes, num_summed: int, num_groups: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the axes that split the sum and the axes that split the groups, as far as they divide."""
    of_sum: tuple[str, ...] = ()
    of_groups: tuple[str, ...] = ()
    for name, axis in axes.items():
        fits_sum, fits_groups = num_summed % axis.size == 0, num_groups % axis.size == 0
        if fits_sum and (axis.splits_batch or not fits_groups):
            of_sum, num_summed = (*of_sum, name), num_summed // axis.size
        elif fits_groups:
            of_groups, num_groups = (*of_groups, name), num_groups // axis.size
    return of_sum, of_groups


def _check_manual(eqn: Any, axes: Axes) -> None:
    left = [axis for axis in axes if axis not in jaxprs.mapped_of(eqn).axes]
    if left and jaxprs.holds(eqn, _is_grouped_gradient):
        raise LayoutError(
            "the gradient of a depthwise or grouped convolution is inside a shard_map that leaves mesh axis "
            f"{left[0]!r} to XLA. XLA computes a wrong sum there.\n"
            "  Give the shard_map all axes of the mesh, or move the convolution out of it."
        )


def _is_convolution(eqn: Any) -> bool:
    return convolution_of(eqn) is not None


def _is_grouped_gradient(eqn: Any) -> bool:
    convolution = convolution_of(eqn)
    return convolution is not None and convolution.batch_groups > 1
