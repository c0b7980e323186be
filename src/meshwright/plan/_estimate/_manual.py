"""The collectives that a program writes out itself, inside `jax.shard_map`."""

from collections.abc import Iterable, Mapping

from meshwright.program import Operation, known_of


def exchange_of(operation: Operation) -> tuple[str, tuple[str, ...], int] | None:
    """Return the kind, the axes and the bytes of what an operation exchanges; None if it is no collective."""
    kind = known_of(operation).exchange
    if not kind:
        return None
    params = operation.eqn.params
    axes = params["axes"] if "axes" in params else params["axis_name"]
    of = operation.outputs if kind == "all-gather" else operation.inputs
    return kind, _named(axes), sum(value.nbytes for value in of)


def is_partly_manual(operation: Operation, sizes: Mapping[str, int]) -> bool:
    """Whether an operation is a `shard_map` that leaves some axes of the mesh to XLA."""
    if operation.kind != "shard_map":
        return False
    manual = operation.eqn.params["newly_manual_axes"]
    return any(size > 1 and axis not in manual for axis, size in sizes.items())


def _named(axes: str | Iterable[object]) -> tuple[str, ...]:
    """Return the axes of the mesh among `axes`; numbers are dimensions, of what `vmap` made."""
    return tuple(axis for axis in ((axes,) if isinstance(axes, str) else axes) if isinstance(axis, str))
