"""A mesh from a few words: `make_mesh("data=-1,fsdp=4,tensor=2")`.

Axes are laid over the devices in the order they are written, the last one over neighbours. So put
the axis that talks most (tensor) last and the one that talks least (data) first: processes, which
hold neighbouring devices, then end up apart along the first.
"""

import math
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import AxisType, Mesh

from meshwright.errors import LayoutError


def make_mesh(shape: str | Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Return a mesh of all `devices` (default: every device of the run) with named axes.

    Axes are Auto axes: XLA's partitioner places what the model leaves open. (`jax.make_mesh` makes
    Explicit axes by default, under which ordinary model code raises.)

    Args:
      shape: axis sizes, as a mapping or as text, `data=-1,fsdp=4`. One size may be -1: the rest.
      devices: in the order wanted; JAX arranges them by the hardware's links.

    Raises:
      LayoutError: the text cannot be read, or the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(shape, len(devices))
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes), devices=devices
    )


def mesh_sizes(shape: str | Mapping[str, int], num_devices: int) -> dict[str, int]:
    """Return the axis sizes that `shape` means on `num_devices`, with -1 filled in. Touches no device."""
    sizes = _parse(shape) if isinstance(shape, str) else dict(shape)
    said = ",".join(f"{axis}={size}" for axis, size in sizes.items())
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if not sizes or len(open_axes) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise LayoutError(
            f"mesh {said!r}: every axis needs a size of at least 1, and at most one may be -1 (the rest).\n"
            "  For example data=-1,fsdp=4,tensor=2."
        )
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if open_axes and num_devices % fixed == 0:
        sizes[open_axes[0]] = num_devices // fixed
    if math.prod(sizes.values()) != num_devices:
        raise LayoutError(_misfit(said, sizes, fixed, num_devices))
    return sizes


def _parse(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, equals, size = (word.strip() for word in part.partition("="))
        if not (equals and axis.isidentifier() and size.removeprefix("-").isdigit()):
            raise LayoutError(
                f"mesh {text!r}: cannot read {part!r}. Write axis=size, as in data=-1,fsdp=4,tensor=2."
            )
        if axis in sizes:
            raise LayoutError(f"mesh {text!r}: axis {axis!r} is there twice. Give each axis one size.")
        sizes[axis] = int(size)
    return sizes


def _misfit(said: str, sizes: Mapping[str, int], fixed: int, num_devices: int) -> str:
    multiple = "a multiple of " if -1 in sizes.values() else ""
    first = next(iter(sizes))
    others = fixed // max(sizes[first], 1) if sizes[first] != -1 else fixed
    remedy = (
        f"{first}=-1" if num_devices % max(others, 1) == 0 and -1 not in sizes.values() else "smaller axes"
    )
    return (
        f"mesh {said} needs {multiple}{fixed} devices, this run has {num_devices}.\n"
        f"  Try {remedy}, or --fake-devices {fixed} to try it on a CPU; "
        "`meshwright doctor` lists the devices."
    )
