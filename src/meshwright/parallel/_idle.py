"""A check for mesh axes that a traced program does not use: all devices along one compute the same."""

from collections.abc import Callable, Iterator

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree
from meshwright.errors import AxisError, LayoutError, did_you_mean
from meshwright.parallel._axes import AXES, Use, axis_named, plain_axes
from meshwright.parallel._layout import Layout, axes_of
from meshwright.program._internal import jaxprs


def raise_error(error: LayoutError) -> None:
    """Raise `error`."""
    raise error


def check_axes(
    layout: Layout,
    arrays: PyTree,
    trace: Callable[[], jax.stages.Traced],
    idle: Callable[[LayoutError], None] = raise_error,
) -> None:
    """Report a mesh axis along which all devices only repeat the same work, if there is one.

    An axis is used if it splits the batch or an array, or if an equation names it: a constraint, a
    `shard_map` or a collective.
    """
    explicit = set(layout.batch_axis_names or ())
    of_batch = _axes_in(layout.batch_sharding.spec)
    used = {axis for axis in of_batch if axis in explicit or axis_named(axis).batch is Use.PURPOSE}
    shardings = {getattr(x, "sharding", None) for x in jax.tree.leaves(arrays)}
    specs = [sharding.spec for sharding in shardings if isinstance(sharding, NamedSharding)]
    of_state = {axis for spec in specs for axis in _axes_in(spec)}
    used |= {axis for axis in of_state if axis_named(axis).state is Use.PURPOSE}
    # The user asks for whole batches, such as those of a meta-learner.
    if layout.batch_axis_names == ():
        used.update(plain_axes())
    unused = [axis for axis, size in layout.mesh.shape.items() if size > 1 and axis not in used]
    if unused:
        equations = list(jaxprs.equations(trace().jaxpr))
        named = {axis for eqn in equations for axis in jaxprs.exchanged_axes(eqn)}
        named |= {axis for eqn in equations for spec in jaxprs.specs_in(eqn) for axis in _axes_in(spec)}
        unused = [axis for axis in unused if axis not in named]
    if unused:
        idle(AxisError(_error_text(layout, unused[0]), unused[0]))


def _error_text(layout: Layout, axis: str) -> str:
    size, hint = layout.mesh.shape[axis], "" if axis in AXES else did_you_mean(axis, AXES)
    row, others = axis_named(axis), " or ".join(plain_axes())
    if row.call:
        return (
            f"mesh axis {axis!r} of size {size} only repeats work: it splits {row.splits} in `{row.call}`, "
            f"which this program does not call.\n  Call `{row.call}` in the model, or give the devices to an "
            f"axis that splits the batch ({others})."
        )
    return (
        f"mesh axis {axis!r} of size {size} only repeats work: it splits neither the batch nor any array "
        f"of the state, and no operation of the program names it.{hint}\n"
        f"  Give its devices to an axis that splits the batch ({others}), or use it: in "
        "a rule for parameters, to split batches, or in a constraint or `shard_map` of the model. "
        "If all devices are to compute the same, of whole batches, write batch_axis_names=()."
    )


def _axes_in(spec: P) -> Iterator[str]:
    return (axis for entry in spec if entry is not P.UNCONSTRAINED for axis in axes_of(entry))
