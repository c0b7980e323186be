"""A mesh from a few words: `make_mesh("data=-1,fsdp=4,tensor=2")`.

Axes are laid over the devices in the order they are written, the last one over neighbours. So put
the axis that talks most (tensor) last and the one that talks least (data) first: processes, which
hold neighbouring devices, then end up apart along the first.

A semicolon makes that certain: `data=-1; fsdp=4,tensor=2` lays what is before it over the *groups* of
devices that have fast links among them, and what is behind it inside each. A group is what JAX calls a
slice (of TPUs; the GPUs of one NVLink domain), or a process where devices have no `slice_index`.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from meshwright.errors import LayoutError

_SPLIT_RINGS = ("TPU v5 lite", "TPU v5e")
"""Kinds of which `jax.make_mesh` lets two axes of the mesh share one of the torus."""
_GROUPS = "groups (slices or processes)"


def make_mesh(shape: str | Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Return a mesh of all `devices` (default: every device of the run) with named axes.

    Axes are Auto axes: XLA's partitioner places what the model leaves open. (`jax.make_mesh` makes
    Explicit axes by default, under which ordinary model code raises.)

    Args:
      shape: axis sizes, as a mapping or as text, `data=-1,fsdp=4`. One size may be -1: the rest. Text with a
        semicolon, `data=-1; fsdp=4,tensor=2`, has two parts: sizes over the groups of devices and sizes
        inside each, with one -1 in either. An axis in both has the product, its inner places side by side.
      devices: in the order wanted; JAX arranges them by the hardware's links. Where they are of several
        slices (GPUs of several hosts are), the leading axes of a shape without a semicolon go over those.

    Raises:
      LayoutError: the text cannot be read, or the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    if isinstance(shape, str) and ";" in shape:
        return _arranged(*_parts(shape, len(devices), len(_group_sizes(devices))), devices)
    sizes = mesh_sizes(shape, len(devices))
    if len({getattr(device, "slice_index", None) for device in devices}) > 1:
        return _arranged(*_over_slices(sizes, _group_sizes(devices)), devices)
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes), devices=devices
    )


def mesh_sizes(shape: str | Mapping[str, int], num_devices: int, num_groups: int = 1) -> dict[str, int]:
    """Return the axis sizes that `shape` means on `num_devices`, with -1 filled in. Touches no device.

    Args:
      num_groups: of as many devices each; asked by text with a semicolon only.

    Raises: as `make_mesh`.
    """
    if isinstance(shape, str) and ";" in shape:
        over, inside = _parts(shape, num_devices, num_groups)
        return {axis: over.get(axis, 1) * inside.get(axis, 1) for axis in over | inside}
    sizes = _parse(shape) if isinstance(shape, str) else dict(shape)
    return _filled(sizes, num_devices, "devices", "this run has")


def grouped_mesh(
    shape: str | Mapping[str, int], num_groups: int, devices: Sequence[jax.Device] | int
) -> Mesh:
    """Return the mesh that `make_mesh` makes of devices listed group by group, all groups alike.

    For hardware that is not there: what JAX describes of GPUs to compile for does not tell their groups.

    Args:
      devices: or the number of them, for an abstract mesh: one to lay out and trace for.

    Raises: as `make_mesh`.
    """
    count = devices if isinstance(devices, int) else len(devices)
    over, inside = group_parts(shape, num_groups, count)
    axes = tuple({**over, **inside})
    sizes = [over.get(axis, 1) * inside.get(axis, 1) for axis in axes]
    types = (AxisType.Auto,) * len(axes)
    if isinstance(devices, int):
        return cast(Mesh, AbstractMesh(tuple(sizes), axes, axis_types=types))
    split = [of.get(axis, 1) for of in (over, inside) for axis in axes]
    pairs = [place for i in range(len(axes)) for place in (i, i + len(axes))]
    return Mesh(np.array(devices).reshape(split).transpose(pairs).reshape(sizes), axes, axis_types=types)


def group_parts(
    shape: str | Mapping[str, int], num_groups: int, num_devices: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the sizes of a mesh over groups of devices with fast links among them, and inside each.

    Raises: as `make_mesh`.
    """
    if isinstance(shape, str) and ";" in shape:
        return _parts(shape, num_devices, num_groups)
    return _over_slices(mesh_sizes(shape, num_devices), [num_devices // num_groups] * num_groups)


def in_mesh(mesh: Mesh | AbstractMesh) -> AbstractContextManager[Any]:
    """Return a context in which models may constrain by bare `PartitionSpec`s; if abstract, to trace."""
    return jax.sharding.use_abstract_mesh(mesh) if isinstance(mesh, AbstractMesh) else jax.set_mesh(mesh)


def group_of(device: jax.Device) -> int:
    """Return which of the groups with fast links among them a device belongs to."""
    slice_index = getattr(device, "slice_index", None)
    return device.process_index if slice_index is None else slice_index


def _group_sizes(devices: Sequence[jax.Device]) -> list[int]:
    sizes = sorted(Counter(map(group_of, devices)).values())
    if len(set(sizes)) > 1:
        raise LayoutError(
            f"the {len(sizes)} {_GROUPS} of this run have {sizes} devices; a mesh over them needs them to be "
            "of one size.\n  Start the run on equal machines."
        )
    return sizes


def _arranged(over: Mapping[str, int], inside: Mapping[str, int], devices: Sequence[jax.Device]) -> Mesh:
    """Return a mesh of sizes over groups and sizes inside each."""
    axes = tuple({**over, **inside})
    arranged = mesh_utils.create_hybrid_device_mesh(
        [inside.get(axis, 1) for axis in axes],
        [over.get(axis, 1) for axis in axes],
        devices,
        process_is_granule=getattr(devices[0], "slice_index", None) is None,
        allow_split_physical_axes=devices[0].device_kind in _SPLIT_RINGS,
    )
    return Mesh(arranged, axes, axis_types=(AxisType.Auto,) * len(axes))


def _over_slices(sizes: dict[str, int], slices: list[int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return plain sizes in two parts, the leading axes over slices; `jax.make_mesh` refuses several."""
    over, left = {}, len(slices)
    for axis, size in sizes.items():
        over[axis] = math.gcd(size, left)
        left //= over[axis]
        if over[axis] < size:
            break
    if left > 1:
        raise LayoutError(
            f"mesh {sizes} does not fit {len(slices)} slices of {slices[0]} devices: the leading axes must "
            f"multiply to a divisor or a multiple of {len(slices)}.\n  Say which axes cross the slow network "
            f"before a semicolon: data={len(slices)}; fsdp=-1."
        )
    return over, {axis: size // over.get(axis, 1) for axis, size in sizes.items()}


def _parts(shape: str, num_devices: int, num_groups: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the sizes over groups and those inside each."""
    over, _, inside = shape.partition(";")
    each = num_devices // num_groups
    return (
        _filled(_parse(over), num_groups, _GROUPS, "before the semicolon, this run has"),
        _filled(_parse(inside), each, "devices", "behind the semicolon, each group has"),
    )


def _filled(sizes: dict[str, int], count: int, things: str, has: str) -> dict[str, int]:
    """Return `sizes` with -1 filled in, so that their product is `count`."""
    said = ",".join(f"{axis}={size}" for axis, size in sizes.items())
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if not sizes or len(open_axes) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise LayoutError(
            f"mesh {said!r}: every axis needs a size of at least 1, and at most one may be -1 (the rest of "
            f"{count} {things}).\n  For example data=-1,fsdp=4,tensor=2."
        )
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if open_axes and count % fixed == 0:
        return {axis: count // fixed if size == -1 else size for axis, size in sizes.items()}
    if open_axes or fixed != count:
        raise LayoutError(_misfit(said, sizes, fixed, count, things, has))
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


def _misfit(said: str, sizes: Mapping[str, int], fixed: int, count: int, things: str, has: str) -> str:
    multiple = "a multiple of " if -1 in sizes.values() else ""
    first = next(iter(sizes))
    others = fixed // max(sizes[first], 1)
    remedy = f"{first}=-1" if count % others == 0 and -1 not in sizes.values() else "smaller axes"
    or_fake = "" if things == _GROUPS else f", or --fake-devices {fixed} to try it on a CPU"
    return (
        f"mesh {said} needs {multiple}{fixed} {things}, {has} {count}.\n"
        f"  Try {remedy}{or_fake}; `meshwright doctor` lists the devices."
    )
