"""Hardware by name: `h100:64x8`, `v5e:16x16`, `cpu:8`."""

import math
import os
import re
from dataclasses import dataclass, replace

from meshwright.errors import UsageError, nearest
from meshwright.plan._chips import CHIPS, Chip, Gpu, Tpu

CPU = "cpu"
GPUS_OF_A_HOST = 8
FORM = "NAME:HOSTSxDEVICES of GPUs (h100:64x8), NAME:TOPOLOGY of TPUs (v5e:16x16, 2*v5e:16x16), or cpu:8"


@dataclass(frozen=True)
class Hardware:
    """So many chips of one kind, in groups with fast links among them."""

    chip: Chip
    shape: tuple[int, ...]
    """Of GPUs hosts × devices of each, or a TPU slice's topology."""
    num_slices: int = 1
    """Of TPUs."""

    @property
    def num_devices(self) -> int:
        """All of them."""
        return self.num_slices * math.prod(self.shape)

    @property
    def group(self) -> int:
        """How many are joined by fast links: those of a host of GPUs, or of a slice of TPUs."""
        return self.shape[-1] if isinstance(self.chip.target, Gpu) else math.prod(self.shape)

    @property
    def num_groups(self) -> int:
        """How many such groups there are."""
        return self.num_devices // self.group

    @property
    def num_mesh_groups(self) -> int:
        """How many groups a mesh with a semicolon is over: of one slice of TPUs, its hosts."""
        hosts_of_slice = self.num_groups == 1 and isinstance(self.chip.target, Tpu)
        return self.num_hosts if hosts_of_slice else self.num_groups

    @property
    def num_hosts(self) -> int:
        """How many machines there are."""
        return math.ceil(self.num_devices / self.per_host)

    @property
    def per_host(self) -> int:
        """How many devices a machine has."""
        return min(4, self.num_devices) if isinstance(self.chip.target, Tpu) else self.group

    def __str__(self) -> str:
        """Return what `mw.sharding.hardware()` says on it, which mesh rules are matched with."""
        counted = f"{self.num_hosts}x{self.per_host}" if self.num_hosts > 1 else str(self.num_devices)
        return f"{self.chip.device_kind}:{counted}"


def hardware_named(text: str) -> Hardware:
    """Return the hardware that `text` names, `h100:64x8`.

    Raises:
      UsageError: nothing is known of it, or it has no such shape.
    """
    found = re.fullmatch(r"(?:(\d+)\*)?([\w-]+):(\d+(?:x\d+)*)", text.strip().lower())
    if found is None:
        raise UsageError(f"cannot read the hardware {text!r}.\n  Write {FORM}.")
    slices, name, shape = int(found[1] or 1), found[2], tuple(map(int, found[3].split("x")))
    if slices < 1 or 0 in shape:
        raise UsageError(f"the hardware {text!r} is of no device.\n  Write {FORM}.")
    if name == CPU:
        return _cpus(_of_one_number(text, slices, shape))
    return _fitting(text, Hardware(_chip(name), shape, slices))


def _cpus(shape: tuple[int, ...]) -> Hardware:
    """The devices share this machine; what they get done is measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / shape[0]
    return Hardware(Chip(CPU, CPU, memory, 1.0, 1.0, 1.0), shape)


def _chip(name: str) -> Chip:
    if name not in CHIPS:
        close = nearest(name, CHIPS)
        raise UsageError(
            f"no chip is known as {name!r}.{f' Did you mean {close!r}?' if close else ''}\n"
            f"  There are {', '.join(CHIPS)}, and cpu."
        )
    return CHIPS[name]


def _of_one_number(text: str, slices: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if slices > 1 or len(shape) > 1:
        raise UsageError(f"the hardware {text!r}: CPU devices have one number, as in cpu:8.")
    return shape


def _fitting(text: str, found: Hardware) -> Hardware:
    chip, shape = found.chip, found.shape
    if isinstance(chip.target, Tpu):
        if len(shape) != chip.target.sides:
            example = "x".join(["4"] * chip.target.sides)
            raise UsageError(
                f"the hardware {text!r}: a slice of {chip.name} has {chip.target.sides} sides, as in "
                f"{chip.name}:{example}."
            )
        return found
    if found.num_slices > 1 or len(shape) > 2:
        raise UsageError(f"the hardware {text!r}: GPUs are hosts x devices of each, as in {chip.name}:64x8.")
    hosts, each = (1, *shape) if len(shape) == 1 else shape
    if each > GPUS_OF_A_HOST:
        raise UsageError(
            f"the hardware {text!r}: a host has at most {GPUS_OF_A_HOST} GPUs.\n"
            f"  {hosts * each} are {chip.name}:{math.ceil(hosts * each / GPUS_OF_A_HOST)}x{GPUS_OF_A_HOST}."
        )
    return replace(found, shape=(hosts, each))
