"""Hardware by name: `h100:64x8`, `v5e:16x16`, `cpu:8`."""

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax

from meshwright.errors import UsageError, did_you_mean
from meshwright.plan._chips import CHIPS, Chip, Gpu, Tpu

CPU = "cpu"
GPUS_OF_A_HOST = 8
"""Most GPUs that one host has."""
FORM = "NAME:HOSTSxGPUS_PER_HOST (h100:64x8), NAME:TOPOLOGY of TPUs (v5e:16x16, 2*v5e:16x16), or cpu:8"
"""The ways to write hardware, for error messages."""


@dataclass(frozen=True)
class Hardware:
    """A number of chips of one kind, in groups with fast links inside a group.

    Example:
      >>> h100s = mw.plan.hardware_named("h100:64x8")
      >>> h100s.num_devices, h100s.num_hosts, str(h100s)
      (512, 64, 'NVIDIA H100 80GB HBM3:64x8')
    """

    chip: Chip
    """The kind of chip."""
    shape: tuple[int, ...]
    """Hosts and GPUs per host; or the topology of one TPU slice; or the number of CPU devices."""
    num_slices: int = 1
    """Number of TPU slices."""

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return self.num_slices * math.prod(self.shape)

    @property
    def group(self) -> int:
        """Number of devices joined by fast links: the GPUs of a host, or the TPUs of a slice."""
        return self.shape[-1] if isinstance(self.chip.target, Gpu) else math.prod(self.shape)

    @property
    def num_groups(self) -> int:
        """Number of such groups."""
        return self.num_devices // self.group

    @property
    def num_mesh_groups(self) -> int:
        """Number of groups that a mesh with a semicolon spans; for one TPU slice, its hosts."""
        hosts_of_slice = self.num_groups == 1 and isinstance(self.chip.target, Tpu)
        return self.num_hosts if hosts_of_slice else self.num_groups

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return math.ceil(self.num_devices / self.per_host)

    @property
    def per_host(self) -> int:
        """Number of devices of one host."""
        return min(4, self.num_devices) if isinstance(self.chip.target, Tpu) else self.group

    def __str__(self) -> str:
        """Return the text of `mw.parallel.hardware()` on this hardware, which mesh rules are matched with."""
        counted = f"{self.num_hosts}x{self.per_host}" if self.num_hosts > 1 else str(self.num_devices)
        return f"{self.chip.device_kind}:{counted}"


def hardware_named(text: str) -> Hardware:
    """Return the hardware that `text` names.

    Args:
      text: Such as `h100:64x8` (hosts × GPUs per host), `v5e:16x16` (a TPU topology) or `cpu:8`.

    Raises:
      UsageError: The chip is unknown, or does not come in that shape.

    Example:
      >>> mw.plan.hardware_named("v5e:16x16").num_devices
      256
    """
    match = re.fullmatch(r"(?:(\d+)\*)?([\w-]+):(\d+(?:x\d+)*)", text.strip().lower())
    if match is None:
        raise UsageError(f"cannot read the hardware {text!r}.\n  Write {FORM}.")
    slices, name, shape = int(match[1] or 1), match[2], tuple(map(int, match[3].split("x")))
    if slices < 1 or 0 in shape:
        raise UsageError(f"the hardware {text!r} has zero devices.\n  Write {FORM}.")
    if name == CPU:
        return _cpus(_cpu_shape(text, slices, shape))
    return _checked(text, Hardware(_chip(name), shape, slices))


def hardware_here(devices: Sequence[jax.Device] | None = None) -> Hardware:
    """Return the hardware that some devices are, to compare a plan with their measurements.

    Example:
      >>> mw.plan._internal.hardware_here().num_devices
      8
    """
    devices = jax.devices() if devices is None else devices
    kind, num_hosts = devices[0].device_kind, len({device.process_index for device in devices})
    if devices[0].platform == CPU:
        return _cpus((len(devices),))
    chip = next((chip for chip in CHIPS.values() if chip.device_kind == kind), None)
    if chip is None:
        kinds = ", ".join(chip.device_kind for chip in CHIPS.values())
        raise UsageError(f"there are no figures for devices of the kind {kind!r}.\n  Known are {kinds}.")
    if isinstance(chip.target, Gpu):
        return Hardware(chip, (num_hosts, len(devices) // num_hosts))
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    corners = [device.coords[: chip.target.sides] for device in devices]  # type: ignore[union-attr]
    lengths = (max(axis) - min(axis) + 1 for axis in zip(*corners, strict=True))
    return Hardware(chip, tuple(lengths), slices)


def _cpus(shape: tuple[int, ...]) -> Hardware:
    """Return CPU devices of this machine, which share its memory; their speeds are measured when needed."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / shape[0]
    return Hardware(Chip(CPU, CPU, memory, 1.0, 1.0, 1.0, 1.0), shape)


def _chip(name: str) -> Chip:
    if name not in CHIPS:
        raise UsageError(
            f"the chip {name!r} is not known.{did_you_mean(name, CHIPS)}\n"
            f"  Known are {', '.join(CHIPS)}, and cpu."
        )
    return CHIPS[name]


def _cpu_shape(text: str, slices: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if slices > 1 or len(shape) > 1:
        raise UsageError(f"the hardware {text!r}: CPU devices take one number, as in cpu:8.")
    return shape


def _checked(text: str, hardware: Hardware) -> Hardware:
    chip, shape = hardware.chip, hardware.shape
    if isinstance(chip.target, Tpu):
        if len(shape) != chip.target.sides:
            example = "x".join(["4"] * chip.target.sides)
            raise UsageError(
                f"the hardware {text!r}: the topology of a {chip.name} slice has {chip.target.sides} sizes, "
                f"as in {chip.name}:{example}."
            )
        return hardware
    if hardware.num_slices > 1 or len(shape) > 2:
        raise UsageError(f"the hardware {text!r}: GPUs are HOSTSxGPUS_PER_HOST, as in {chip.name}:64x8.")
    hosts, per_host = (1, *shape) if len(shape) == 1 else shape
    if per_host > GPUS_OF_A_HOST:
        raise UsageError(
            f"the hardware {text!r}: a host has at most {GPUS_OF_A_HOST} GPUs.\n"
            f"  Write {chip.name}:{math.ceil(hosts * per_host / GPUS_OF_A_HOST)}x{GPUS_OF_A_HOST} for "
            f"{hosts * per_host} GPUs."
        )
    return replace(hardware, shape=(hosts, per_host))
