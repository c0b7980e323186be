"""Accelerators: memory, links and networks. Their FLOP/s are in `program.peak_flops`.

Each figure is for one JAX device. Sources:

  NVIDIA  The data sheets of A100, H100, H200 and B200 give memory size, memory bandwidth and NVLink
          bandwidth; half of the last is used, since the sheets count both directions. Networks are those
          of the DGX systems: InfiniBand with 200 Gbit/s per GPU for A100s, 400 for later chips. The
          compiler's properties are copied from XLA's descriptions of these GPUs
          (github.com/openxla/xla, xla/backends/gpu/target_config/specs).
  Google  https://cloud.google.com/tpu/docs gives figures per chip. One torus link carries, in one direction,
          the interconnect bandwidth (both directions) divided by the number of links: four for v5e and v6e,
          six for v4 and v5p. A ring along one axis uses two links of a chip, one per direction. The
          data-centre network is a host's two 100 Gbit/s cards (from v5e's page) divided by its chips; the
          same is assumed for the other TPUs.
  Hosts   A100s have PCIe 4.0 with 16 lanes, H100s, H200s and B200s 5.0. For TPUs nothing is published: 3.0
          with 16 lanes is assumed.
"""

from dataclasses import dataclass

GB = 1e9
"""Bytes of a gigabyte: vendors count in decimal."""


@dataclass(frozen=True)
class Gpu:
    """Properties of a GPU that XLA's compiler needs."""

    capability: tuple[int, int]
    """CUDA compute capability, major and minor."""
    cores: int
    """Number of streaming multiprocessors."""
    lanes: int
    """Float32 lanes of one multiprocessor."""
    clock_ghz: float
    """Clock rate in GHz."""
    l2_bytes: int
    """Bytes of L2 cache."""
    shared_bytes: int
    """Bytes of shared memory of one multiprocessor."""
    shared_bytes_of_block: int
    """Most bytes of shared memory that one thread block can use."""


@dataclass(frozen=True)
class Tpu:
    """Properties of a TPU that libtpu's compiler needs."""

    sides: int
    """Number of dimensions of the torus that a slice is: two or three."""
    chip_config: str | None = None
    """libtpu's name for how a chip's cores form devices; None if there is only one way."""
    wraps_from: int | None = None
    """An axis' links close to a ring if all axes of the slice are multiples of this length.

    None: the compiler is
    not told about rings.
    """


@dataclass(frozen=True)
class Chip:
    """An accelerator, as one JAX device."""

    name: str
    """Short name that people type, such as `h100`."""
    device_kind: str
    """`Device.device_kind` in JAX, as used by `peak_flops` and mesh rules."""
    memory_bytes: float
    """Bytes of memory that a program can use."""
    memory_bandwidth: float
    """Bytes per second read and written together."""
    link_bandwidth: float
    """Bytes per second sent over fast links (inside a host or a TPU slice) along one mesh axis."""
    network_bandwidth: float
    """Bytes per second that a device sends to devices beyond its fast links."""
    host_bandwidth: float
    """Bytes per second that a device and the host's memory exchange in one direction."""
    target: Gpu | Tpu | None = None
    """Properties for the compiler; None for a CPU, whose devices are present."""


_HOPPER = Gpu((9, 0), 132, 128, 1.98, 52_428_800, 233_472, 232_448)
_AMPERE = Gpu((8, 0), 108, 64, 1.41, 41_943_040, 167_936, 166_912)

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("a100-40gb", "NVIDIA A100-SXM4-40GB", 42.4e9, 1555e9, 300e9, 25e9, 32e9, _AMPERE),
        Chip("a100", "NVIDIA A100-SXM4-80GB", 85.1e9, 2039e9, 300e9, 25e9, 32e9, _AMPERE),
        Chip("h100", "NVIDIA H100 80GB HBM3", 84.9e9, 3352e9, 450e9, 50e9, 64e9, _HOPPER),
        Chip("h200", "NVIDIA H200", 151.4e9, 4800e9, 450e9, 50e9, 64e9, _HOPPER),
        Chip(
            "b200",
            "NVIDIA B200",
            191.5e9,
            7672e9,
            900e9,
            50e9,
            64e9,
            Gpu((10, 0), 148, 128, 1.965, 132_644_864, 233_472, 232_448),
        ),
        Chip("v4", "TPU v4", 31.75 * 2**30, 1228e9, 100e9, 6.25e9, 16e9, Tpu(3, "megacore", 4)),
        Chip("v5e", "TPU v5 lite", 15.75 * 2**30, 819e9, 100e9, 3.1e9, 16e9, Tpu(2)),
        Chip("v5p", "TPU v5", 95.74 * 2**30, 2765e9, 200e9, 6.25e9, 16e9, Tpu(3, "megacore", 4)),
        Chip("v6e", "TPU v6 lite", 31.25 * 2**30, 1640e9, 200e9, 6.25e9, 16e9, Tpu(2)),
    )
}
"""Chips by short name."""
