"""What is known of accelerators besides their FLOP/s (`program.peak_flops`): memory, links, networks.

By what JAX calls one device. Where it comes from:

  NVIDIA  the data sheets of A100, H100, H200 and B200: memory, its bandwidth, half of NVLink's, whose
          figure counts both directions. Networks are those of the DGX systems: InfiniBand at 200 Gbit/s
          a GPU with A100s and 400 with the later ones. What the compiler asks for is as XLA has it for the
          same GPUs (github.com/openxla/xla, xla/backends/gpu/target_config/specs).
  Google  https://cloud.google.com/tpu/docs, per chip. A link of a torus carries, one way, the interconnect's
          bandwidth in both directions by the number of links: four of v5e and v6e, six of v4 and v5p. A
          ring along one axis uses two links of a chip, one each way. The network of a data centre is that of
          a host's two 100 Gbit/s cards (v5e's page) over its chips; the same is taken for the others.
"""

from dataclasses import dataclass

GB = 1e9
"""Vendors count in decimal."""


@dataclass(frozen=True)
class Gpu:
    """What XLA's compiler must know of a GPU."""

    capability: tuple[int, int]
    """Of CUDA's compute capability, major and minor."""
    cores: int
    """Streaming multiprocessors."""
    lanes: int
    """Of a core, for float32."""
    clock_ghz: float
    l2_bytes: int
    shared_bytes: int
    """Of memory that the threads of a core share."""
    shared_bytes_of_block: int
    """The most of it that one block can have."""


@dataclass(frozen=True)
class Tpu:
    """What libtpu's compiler must know of a TPU."""

    sides: int
    """Of the torus that a slice is: two or three."""
    chip_config: str | None = None
    """How the cores of a chip make devices; None where there is but one way."""
    wraps_from: int | None = None
    """The links of an axis close to a ring where all axes are at least so long and divide by it; None: never
    told to the compiler."""


@dataclass(frozen=True)
class Chip:
    """An accelerator, as one device of JAX."""

    name: str
    device_kind: str
    """As JAX spells it, so that `peak_flops` and mesh rules know it."""
    memory_bytes: float
    """What a program can use."""
    memory_bandwidth: float
    """Bytes a second, read and written together."""
    link_bandwidth: float
    """Bytes a second that one sends, along one axis of a mesh, to others that fast links join it with:
    GPUs of its host, TPUs of its slice."""
    network_bandwidth: float
    """Bytes a second that one sends to all others."""
    target: Gpu | Tpu | None = None
    """For the compiler; None of a CPU, which is at hand."""


_HOPPER = Gpu((9, 0), 132, 128, 1.98, 52_428_800, 233_472, 232_448)
_AMPERE = Gpu((8, 0), 108, 64, 1.41, 41_943_040, 167_936, 166_912)

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("a100-40gb", "NVIDIA A100-SXM4-40GB", 42.4e9, 1555e9, 300e9, 25e9, _AMPERE),
        Chip("a100", "NVIDIA A100-SXM4-80GB", 85.1e9, 2039e9, 300e9, 25e9, _AMPERE),
        Chip("h100", "NVIDIA H100 80GB HBM3", 84.9e9, 3352e9, 450e9, 50e9, _HOPPER),
        Chip("h200", "NVIDIA H200", 151.4e9, 4800e9, 450e9, 50e9, _HOPPER),
        Chip(
            "b200",
            "NVIDIA B200",
            191.5e9,
            7672e9,
            900e9,
            50e9,
            Gpu((10, 0), 148, 128, 1.965, 132_644_864, 233_472, 232_448),
        ),
        Chip("v4", "TPU v4", 31.75 * 2**30, 1228e9, 100e9, 6.25e9, Tpu(3, "megacore", 4)),
        Chip("v5e", "TPU v5 lite", 15.75 * 2**30, 819e9, 100e9, 3.1e9, Tpu(2)),
        Chip("v5p", "TPU v5", 95.74 * 2**30, 2765e9, 200e9, 6.25e9, Tpu(3, "megacore", 4)),
        Chip("v6e", "TPU v6 lite", 31.25 * 2**30, 1640e9, 200e9, 6.25e9, Tpu(2)),
    )
}
"""By the names that people give them."""
