"""The meshes that a search tries, as sizes of the axes that split models. The other devices split the batch.

There are too many combinations of four axes to plan all. So each axis is tried alone first, and then those of
the best meshes are made longer, one at a time (`Search` has the order). What does not apply to a model is
found by its plan: see `AxisError`.
"""

import math
from collections.abc import Iterator, Mapping

from meshwright.base._internal import mesh_text
from meshwright.parallel._internal import AXES, EXPERT, PIPELINE, SEQUENCE
from meshwright.plan._hardware import Hardware

Sizes = Mapping[str, int]
"""The size of each axis that splits a model; those of size 1 are left out."""
TENSOR = "tensor"
LONGEST = {TENSOR: 16, EXPERT: 256, SEQUENCE: 64, PIPELINE: 32}
"""The axes that split models, and the longest of each that is tried."""


def alone(hardware: Hardware) -> Iterator[list[Sizes]]:
    """Yield the sizes of each axis by itself, in order.

    The tensor axis stays within devices joined by fast links.
    """
    for axis, longest in LONGEST.items():
        count = hardware.group if axis == TENSOR else hardware.num_devices
        yield [{axis: size} for size in divisors(count) if 1 < size <= longest]


def longer(sizes: Sizes, hardware: Hardware) -> Iterator[tuple[str, Sizes]]:
    """Yield each axis with the sizes in which it is longer by the smallest factor that the devices allow."""
    for axis, longest in LONGEST.items():
        count = hardware.group if axis == TENSOR else hardware.num_devices
        left, size = ways_of(sizes, hardware), sizes.get(axis, 1)
        factor = next((n for n in divisors(left) if n > 1 and count % (n * size) == 0), None)
        if factor is not None and size * factor <= longest:
            yield axis, {**sizes, axis: size * factor}


def ways_of(sizes: Sizes, hardware: Hardware) -> int:
    """Return the number of devices that are left for `data` and `fsdp`."""
    return hardware.num_devices // math.prod(sizes.values())


def mesh_of(sizes: Sizes, hardware: Hardware, fsdp: int | None = None) -> str:
    """Return a mesh as text, with all devices."""
    ways = ways_of(sizes, hardware)
    fsdp = ways if fsdp is None else fsdp
    whole = {**sizes, "data": ways // fsdp, "fsdp": fsdp}
    return mesh_text({axis: whole[axis] for axis in AXES if whole.get(axis, 1) > 1}) or "data=1"


def divisors(number: int) -> list[int]:
    """Return all divisors of a number, in order."""
    return [n for n in range(1, number + 1) if number % n == 0]
