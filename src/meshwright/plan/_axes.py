"""The meshes that a search tries, as sizes of the axes that split models. The other devices split the batch.

There are too many combinations of four axes to plan all. So each axis is tried alone first, and then those of
the best meshes are made longer, one at a time (`Search` has the order). What does not apply to a model is
found by its plan: see `AxisError`.
"""

import math
from collections.abc import Iterator, Mapping

from meshwright.base._internal import mesh_text
from meshwright.parallel._internal import AXES, DATA, FSDP, Axis
from meshwright.plan._hardware import Hardware

Sizes = Mapping[str, int]
"""The size of each axis that splits a model; those of size 1 are left out."""


def model_axes() -> list[Axis]:
    """Return the axes that split models, in the order in which they are tried: fast links first."""
    return sorted((axis for axis in AXES.values() if axis.longest), key=lambda x: (not x.is_fast, -x.longest))


def alone(hardware: Hardware) -> Iterator[list[Sizes]]:
    """Yield the sizes of each axis by itself, in order.

    A fast axis stays within devices joined by fast links.
    """
    for axis in model_axes():
        yield [{axis.name: size} for size in divisors(_reach(axis, hardware)) if 1 < size <= axis.longest]


def longer(sizes: Sizes, hardware: Hardware) -> Iterator[tuple[str, Sizes]]:
    """Yield each axis with the sizes in which it is longer by the smallest factor that the devices allow."""
    for axis in model_axes():
        ways, size, reach = ways_of(sizes, hardware), sizes.get(axis.name, 1), _reach(axis, hardware)
        factor = next((n for n in divisors(ways) if n > 1 and reach % (n * size) == 0), None)
        if factor is not None and size * factor <= axis.longest:
            yield axis.name, {**sizes, axis.name: size * factor}


def _reach(axis: Axis, hardware: Hardware) -> int:
    """Return the number of devices that an axis may span."""
    return hardware.group if axis.is_fast else hardware.num_devices


def ways_of(sizes: Sizes, hardware: Hardware) -> int:
    """Return the number of devices that are left for `data` and `fsdp`."""
    return hardware.num_devices // math.prod(sizes.values())


def mesh_of(sizes: Sizes, hardware: Hardware, fsdp: int | None = None) -> str:
    """Return a mesh as text, with all devices."""
    ways = ways_of(sizes, hardware)
    fsdp = ways if fsdp is None else fsdp
    whole = {**sizes, DATA: ways // fsdp, FSDP: fsdp}
    return mesh_text({axis: whole[axis] for axis in AXES if whole.get(axis, 1) > 1}) or f"{DATA}=1"


def divisors(number: int) -> list[int]:
    """Return all divisors of a number, in order."""
    return [n for n in range(1, number + 1) if number % n == 0]
