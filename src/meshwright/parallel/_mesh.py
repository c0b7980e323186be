"""`make_mesh`: a mesh from a short text, such as `data=-1,fsdp=4,tensor=2`.

Axes are laid over the devices in the order in which they are written; neighbouring devices differ along the
last axis. So put the axis with most traffic (tensor) last and the one with least (data) first: processes,
which hold neighbouring devices, then differ along the first.

A semicolon makes that certain: in `data=-1; fsdp=4,tensor=2` the first part is laid over *groups* of devices
with fast links among them, and the second inside each group. A group is what JAX calls a slice (of TPUs; for
GPUs, one NVLink domain), or a process on CPUs and where devices have no `slice_index`.

`explicit: data=4,tensor=2` makes axes of JAX's type Explicit, for models that say how results are split.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from meshwright.base._internal import mesh_text
from meshwright.errors import AxisError, LayoutError, UsageError
from meshwright.parallel._axes import DATA, EXAMPLE, FSDP

_SPLIT_RINGS = ("TPU v5 lite", "TPU v5e")
"""Device kinds for which `jax.make_mesh` lets two mesh axes share one axis of the torus."""
_GROUPS = "groups (slices or processes)"
_EXPLICIT = "explicit:"
_MISSING = re.compile(r"Resource axis: (\w+) of .* is not found in mesh")
"""The start of JAX's error about a sharding constraint."""


def make_mesh(shape: str | Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Return a mesh of all `devices` with named axes.

    The axes are Auto axes: XLA decides the shardings that the model leaves open. Models that state the
    shardings of their results, by `out_sharding=` and `jax.sharding.reshard`, need Explicit axes: write
    `explicit:` before the sizes. (`jax.make_mesh` makes those by default, and other models raise errors.)

    Args:
      shape: Axis sizes as a mapping or as text, `data=-1,fsdp=4`. One size may be -1, for the remaining
        devices. Text with a semicolon, `data=-1; fsdp=4,tensor=2`, gives sizes over groups of devices with
        fast links and sizes inside a group, with at most one -1 in each part. An axis in both parts has the
        product of its sizes, with the devices of a group side by side. Text that begins with `explicit:`
        makes Explicit axes.
      devices: The devices, in order; by default all devices of the run. JAX arranges them by the hardware's
        links. If they belong to several slices (as GPUs of several hosts do), the leading axes of a shape
        without a semicolon run over the slices.

    Raises:
      LayoutError: The text cannot be read, or the sizes do not multiply to the number of devices.

    Example:
      >>> dict(mw.make_mesh("data=-1,tensor=2").shape)
      {'data': 4, 'tensor': 2}
    """
    devices = jax.devices() if devices is None else devices
    kind, shape = _typed(shape)
    if isinstance(shape, str) and ";" in shape:
        return _arranged(*_parts(shape, len(devices), len(_group_sizes(devices))), devices, kind)
    sizes = mesh_sizes(shape, len(devices))
    if len({_slice_of(device) for device in devices}) > 1:
        return _arranged(*_over_slices(sizes, _group_sizes(devices)), devices, kind)
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes), devices=devices
    )


def mesh_sizes(shape: str | Mapping[str, int], num_devices: int, num_groups: int = 1) -> dict[str, int]:
    """Return the axis sizes of a shape on `num_devices`, with -1 filled in, without using any device.

    Example:
      >>> mw.parallel._internal.mesh_sizes("data=-1,fsdp=4", 32)
      {'data': 8, 'fsdp': 4}
    """
    _, shape = _typed(shape)
    if isinstance(shape, str) and ";" in shape:
        over, inside = _parts(shape, num_devices, num_groups)
        return {axis: over.get(axis, 1) * inside.get(axis, 1) for axis in over | inside}
    sizes = _parse(shape) if isinstance(shape, str) else dict(shape)
    return _filled(sizes, num_devices, "devices", "this run has")


def grouped_mesh(
    shape: str | Mapping[str, int], num_groups: int, devices: Sequence[jax.Device] | int
) -> Mesh:
    """Return the mesh that `make_mesh` would make of devices listed group by group, all groups of one size.

    It serves hardware that is absent: JAX's descriptions of GPUs do not contain their groups.
    """
    count = devices if isinstance(devices, int) else len(devices)
    over, inside = group_parts(shape, num_groups, count)
    axes = tuple({**over, **inside})
    sizes = [over.get(axis, 1) * inside.get(axis, 1) for axis in axes]
    types = (_typed(shape)[0],) * len(axes)
    if isinstance(devices, int):
        return cast(Mesh, AbstractMesh(tuple(sizes), axes, axis_types=types))
    split = [sizes.get(axis, 1) for sizes in (over, inside) for axis in axes]
    pairs = [dim for i in range(len(axes)) for dim in (i, i + len(axes))]
    return Mesh(np.array(devices).reshape(split).transpose(pairs).reshape(sizes), axes, axis_types=types)


def group_parts(
    shape: str | Mapping[str, int], num_groups: int, num_devices: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the sizes of mesh axes over groups of devices with fast links, and inside a group.

    Example:
      >>> mw.parallel._internal.group_parts("data=-1; fsdp=4,tensor=2", 4, 32)
      ({'data': 4}, {'fsdp': 4, 'tensor': 2})
    """
    _, shape = _typed(shape)
    if isinstance(shape, str) and ";" in shape:
        return _parts(shape, num_devices, num_groups)
    return _over_slices(mesh_sizes(shape, num_devices), [num_devices // num_groups] * num_groups)


@contextmanager
def in_mesh(mesh: Mesh | AbstractMesh) -> Iterator[None]:
    """Return a context in which models may constrain arrays by bare `PartitionSpec`s.

    Example:
      >>> with mw.parallel._internal.in_mesh(mw.make_mesh("data=8")):
      ...     y = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, jax.P("data")))(jnp.ones(8))
      >>> y.sharding.spec
      P('data',)
    """
    is_abstract = isinstance(mesh, AbstractMesh)
    with jax.sharding.use_abstract_mesh(mesh) if is_abstract else jax.set_mesh(mesh):
        try:
            yield
        except ValueError as error:
            sizes = mesh_text(mesh.shape)
            if missing := _MISSING.match(str(error)):
                raise AxisError(
                    f"the model splits an array over the mesh axis {missing[1]!r}, and the mesh {sizes} has "
                    "no such axis.\n  Give the mesh this axis, of size 1 if it is to split nothing: "
                    f"mesh='{sizes},{missing[1]}=1'.",
                    missing[1],
                ) from error
            if "of type Auto" not in str(error):
                raise
            raise LayoutError(
                "the model states the shardings of its results (out_sharding=, jax.sharding.reshard), which "
                f"needs explicit axes. JAX says: {error}\n  Write mesh='explicit: {sizes}'."
            ) from error
        except NameError as error:
            if "unbound axis name" not in str(error):
                raise
            raise UsageError(
                f"the program names an axis for jax.lax.pmean, psum or batch norm, as for pmap: {error}\n"
                "  Leave it out, as in BatchNorm(axis_name=None): a batch is one array over all devices."
            ) from error
        except Exception as error:
            # JAX has no public name for this class.
            if type(error).__name__ == "ShardingTypeError":
                error.add_note(
                    "The mesh has explicit axes. A model that leaves shardings to XLA needs a mesh without "
                    "'explicit:'."
                )
            raise


def group_of(device: jax.Device) -> int:
    """Return the number of the group of devices with fast links that a device belongs to."""
    number = _slice_of(device)
    return device.process_index if number is None else number


def _slice_of(device: jax.Device) -> int | None:
    """Return the number of a device's slice; None if JAX gives none, and on CPUs, all of which have 0."""
    return None if device.platform == "cpu" else getattr(device, "slice_index", None)


def _group_sizes(devices: Sequence[jax.Device]) -> list[int]:
    sizes = sorted(Counter(map(group_of, devices)).values())
    if len(set(sizes)) > 1:
        raise LayoutError(
            f"the {len(sizes)} {_GROUPS} of this run have {sizes} devices; a mesh over groups needs the same "
            "number in each.\n  Start the run on equal machines."
        )
    return sizes


def _typed(shape: str | Mapping[str, int]) -> tuple[AxisType, str | Mapping[str, int]]:
    """Return the type of the axes, and the shape without it."""
    if isinstance(shape, str) and shape.lstrip().startswith(_EXPLICIT):
        return AxisType.Explicit, shape.lstrip().removeprefix(_EXPLICIT)
    return AxisType.Auto, shape


def _arranged(
    over: Mapping[str, int], inside: Mapping[str, int], devices: Sequence[jax.Device], kind: AxisType
) -> Mesh:
    """Return a mesh, given its sizes over groups and inside a group, and the type of its axes."""
    axes = tuple({**over, **inside})
    arranged = mesh_utils.create_hybrid_device_mesh(
        [inside.get(axis, 1) for axis in axes],
        [over.get(axis, 1) for axis in axes],
        devices,
        process_is_granule=_slice_of(devices[0]) is None,
        allow_split_physical_axes=devices[0].device_kind in _SPLIT_RINGS,
    )
    return Mesh(arranged, axes, axis_types=(kind,) * len(axes))


def _over_slices(sizes: dict[str, int], slices: list[int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return plain sizes in two parts, the leading axes over slices.

    `jax.make_mesh` refuses several slices.
    """
    over, remaining = {}, len(slices)
    for axis, size in sizes.items():
        over[axis] = math.gcd(size, remaining)
        remaining //= over[axis]
        if over[axis] < size:
            break
    if remaining > 1:
        raise LayoutError(
            f"mesh {sizes} does not fit {len(slices)} slices of {slices[0]} devices: the leading axes must "
            f"multiply to a divisor or a multiple of {len(slices)}.\n  Say which axes cross the slow network "
            f"before a semicolon: {DATA}={len(slices)}; {FSDP}=-1."
        )
    return over, {axis: size // over.get(axis, 1) for axis, size in sizes.items()}


def _parts(shape: str, num_devices: int, num_groups: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the sizes over groups and the sizes inside a group."""
    over, _, inside = shape.partition(";")
    group_size = num_devices // num_groups
    return (
        _filled(_parse(over), num_groups, _GROUPS, "before the semicolon, this run has"),
        _filled(_parse(inside), group_size, "devices", "after the semicolon, each group has"),
    )


def _filled(sizes: dict[str, int], count: int, unit: str, has: str) -> dict[str, int]:
    """Return `sizes` with -1 filled in, so that their product is `count`."""
    text = mesh_text(sizes)
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if not sizes or len(open_axes) > 1 or any(size < 1 and size != -1 for size in sizes.values()):
        raise LayoutError(
            f"mesh {text!r}: every axis needs a size of at least 1, and at most one may be -1 (the rest of "
            f"{count} {unit}).\n  For example {EXAMPLE}."
        )
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if open_axes and count % fixed == 0:
        return {axis: count // fixed if size == -1 else size for axis, size in sizes.items()}
    if open_axes or fixed != count:
        raise LayoutError(_misfit(text, sizes, fixed, count, unit, has))
    return sizes


def _parse(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, equals, size = (word.strip() for word in part.partition("="))
        if not (equals and axis.isidentifier() and size.removeprefix("-").isdigit()):
            raise LayoutError(f"mesh {text!r}: cannot read {part!r}. Write axis=size, as in {EXAMPLE}.")
        if axis in sizes:
            raise LayoutError(f"mesh {text!r}: axis {axis!r} appears twice. Give each axis one size.")
        sizes[axis] = int(size)
    return sizes


def _misfit(text: str, sizes: Mapping[str, int], fixed: int, count: int, unit: str, has: str) -> str:
    multiple = "a multiple of " if -1 in sizes.values() else ""
    first = next(iter(sizes))
    others = fixed // max(sizes[first], 1)
    remedy = f"{first}=-1" if count % others == 0 and -1 not in sizes.values() else "smaller axes"
    way = f"meshwright launch local -n {fixed}" if unit == _GROUPS else f"--fake-devices {fixed}"
    or_fake = f", or {way} to try it on a CPU"
    return (
        f"mesh {text} needs {multiple}{fixed} {unit}, {has} {count}.\n"
        f"  Try {remedy}{or_fake}; `meshwright doctor` lists the devices."
    )
