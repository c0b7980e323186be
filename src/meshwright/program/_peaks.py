"""Peak floating-point operations per second of devices.

Figures are for one JAX device: half a chip of TPU v2, v3 and TPU7x, one die of an MI250X. They hold for
dense products; the largest figures that vendors print are often for sparse products, and twice as high. If
sources disagree, the vendor's figure is used.

  NVIDIA  The data sheets of V100, T4, A100, A10, A40, RTX A6000, L4, L40, L40S, H100, H200, Blackwell and
          the DGX GB200 page. TF32 is half of bfloat16 on each that has it. H200 NVL is in Lightning's table
          only. H20 is from torchtitan.
  AMD     The data sheets of MI250X, MI300X, MI325X, MI355X. 1307.4 instead of 1300 follows from AMD's
          figure for MI300A and the numbers of compute units.
  Google  https://cloud.google.com/tpu/docs, per chip. JAX's own table (`jax.experimental.pallas.tpu`) has 46
          and 140 instead of 46 and 123 for v2 and v3 per chip, and 920 instead of 918 for v6e.

Unknown devices are left out: the A10G (not an A10; the vendor gives no figure), and parts of a GPU (MIG).
"""

import re

Peaks = dict[str, float]
"""TFLOP/s by dtype."""


def _volta(float16: float, float32: float) -> Peaks:
    return {"float16": float16, "float32": float32}


def _nvidia(half: float) -> Peaks:
    """Return the peaks of GPUs from Ampere on, where JAX multiplies float32 as TF32 by default."""
    return {"bfloat16": half, "float16": half, "float32": half / 2}


def _amd(half: float) -> Peaks:
    return {"bfloat16": half, "float16": half}


def _tpu(bfloat16: float) -> Peaks:
    """Return the peaks of TPUs, where JAX multiplies float32 in one pass of bfloat16 by default."""
    return {"bfloat16": bfloat16, "float32": bfloat16}


_PEAKS: dict[str, Peaks] = {
    "V100-SXM2": _volta(125, 15.7),
    "V100-SXM3": _volta(125, 15.7),
    "V100-PCIE": _volta(112, 14),
    "V100S-PCIE": _volta(130, 16.4),
    "T4": _volta(65, 8.1),
    "A100": _nvidia(312),
    "A10": _nvidia(125),
    "A40": _nvidia(149.7),
    "RTX A6000": _nvidia(154.85),
    "L4": _nvidia(121),
    "L40": _nvidia(181),
    "L40S": _nvidia(362),
    "H100 80GB HBM3": _nvidia(989.5),  # SXM
    "H100 PCIe": _nvidia(756.5),
    "H100 NVL": _nvidia(835.5),
    "H200": _nvidia(989.5),
    "H200 NVL": _nvidia(840),
    "H20": _nvidia(148),
    "B200": _nvidia(2250),
    "B300": _nvidia(2250),
    "GB200": _nvidia(2500),
    "GB300": _nvidia(2500),
    "MI250X": _amd(191.5),
    "MI300X": _amd(1307.4),
    "MI325X": _amd(1307.4),
    "MI355X": _amd(2500),
    "TPU v2": _tpu(23),
    "TPU v3": _tpu(61.5),
    "TPU v4": _tpu(275),
    "TPU v4 lite": _tpu(137),
    "TPU v5 lite": _tpu(197),
    "TPU v5e": _tpu(197),
    "TPU v5": _tpu(459),
    "TPU v5p": _tpu(459),
    "TPU v6 lite": _tpu(918),
    "TPU v6e": _tpu(918),
    "TPU7x": _tpu(1153.5),
}


def peak_flops(device_kind: str, dtype: str = "bfloat16") -> float | None:
    """Return the peak FLOP/s of a device for products of `dtype`; None if it is not known.

    float32 is multiplied as JAX does by default: as TF32 by NVIDIA's GPUs from Ampere on, in bfloat16 by TPUs
    (https://docs.jax.dev/en/latest/201/precision.html). A higher `precision` cannot reach this rate.

    Unproven: never run on the GPUs and TPUs whose peaks it knows.

    Args:
      device_kind: `jax.Device.device_kind`, such as "NVIDIA H100 80GB HBM3".
      dtype: Name of the factors' dtype.

    Example:
      >>> mw.observe.peak_flops("NVIDIA H100 80GB HBM3") / 1e12
      989.5
    """
    fitting = [name for name in _PEAKS if _names(name, device_kind)]
    if not fitting or _names("MIG", device_kind):
        return None
    found = _PEAKS[max(fitting, key=len)].get(dtype)
    return None if found is None else found * 1e12


def _names(name: str, device_kind: str) -> bool:
    """Return whether `device_kind` contains `name` as whole words: "A10" is not in A100, A10G or A1000."""
    return re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", device_kind, re.IGNORECASE) is not None
