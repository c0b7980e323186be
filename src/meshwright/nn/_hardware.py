"""The devices that a program is traced for, which decide which kernels it may use."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax


@dataclass(frozen=True)
class Hardware:
    """The devices that a program is traced for."""

    platform: str
    """"cpu", "gpu" or "tpu"."""
    capability: tuple[int, int] = (0, 0)
    """The compute capability of NVIDIA's devices."""
    mesh: Mapping[str, int] = field(default_factory=dict)
    """The sizes of the axes of the surrounding mesh over which XLA may split arrays."""
    num_devices: int = 1
    """The number of devices over which the program may be split."""
    is_partly_manual: bool = False
    """True inside a `shard_map` over some axes of the mesh, and where axes are explicit in types."""
    is_absent: bool = False
    """True if these devices are not in this process: the program is traced or compiled for a plan."""
    is_unknown: bool = False
    """True if the mesh does not say which devices it is of, as where a plan is traced only."""

    @classmethod
    def current(cls) -> "Hardware":
        """Return the devices of the surrounding mesh, or the default devices of this process."""
        mesh = jax.sharding.get_abstract_mesh()
        # A plan compiles for devices that this process lacks.
        device = getattr(mesh, "abstract_device", None)
        named = jax.default_backend() if device is None else str(device.platform)
        platform = "gpu" if named in ("cuda", "rocm") else named
        is_unknown = bool(mesh.shape) and device is None
        is_absent = is_unknown or (platform == "gpu" != jax.local_devices()[0].platform)
        manual = set(mesh.manual_axes)
        sizes = {axis: size for axis, size in mesh.shape.items() if axis not in manual and size > 1}
        is_partly_manual = bool(sizes) and not mesh.are_all_axes_auto
        num_devices = math.prod(sizes.values()) if mesh.shape else jax.device_count()
        capability = (0, 0) if is_absent else _capability(platform)
        return cls(platform, capability, sizes, num_devices, is_partly_manual, is_absent, is_unknown)


def _capability(platform: str) -> tuple[int, int]:
    device = jax.local_devices()[0]
    text = str(getattr(device, "compute_capability", "")) if platform == "gpu" == device.platform else ""
    # For AMD's devices the text is a name, such as gfx90a.
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
