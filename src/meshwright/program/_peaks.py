"""How many floating-point operations a device can do in a second.

By what JAX calls one device: half a chip of TPU v2, v3 and TPU7x, one die of an MI250X. Dense products;
the figures that vendors print largest are often of sparse ones, twice these. Where sources disagree the
vendor's stands.

  NVIDIA  the data sheets of V100, T4, A100, A10, A40, RTX A6000, L4, L40, L40S, H100, H200, Blackwell and
          the DGX GB200 page. TF32 is half of bfloat16 on each that has it. H200 NVL: Lightning's table
          alone. H20: torchtitan's.
  AMD     the data sheets of MI250X, MI300X, MI325X, MI355X. 1307.4 rather than 1300 is what AMD's figure
          for MI300A gives for its compute units.
  Google  https://cloud.google.com/tpu/docs, per chip. JAX's own table (`jax.experimental.pallas.tpu`) says 46
          and 140 of v2 and v3 per chip rather than 46 and 123, 920 rather than 918 of v6e.

Left out, so unknown: A10G (not an A10's; no figure of the vendor's found), and parts of a GPU (MIG).
"""

import re

Peaks = dict[str, float]
"""TFLOP/s by dtype."""


def _volta(float16: float, float32: float) -> Peaks:
    return {"float16": float16, "float32": float32}


def _nvidia(half: float) -> Peaks:
    """From Ampere on: JAX multiplies float32 as TF32, unless told otherwise."""
    return {"bfloat16": half, "float16": half, "float32": half / 2}


def _amd(half: float) -> Peaks:
    return {"bfloat16": half, "float16": half}


def _tpu(bfloat16: float) -> Peaks:
    """JAX multiplies float32 in one pass of bfloat16, unless told otherwise."""
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
    """Return the most operations a second that a device does with products of `dtype`, or None if not known.

    float32 is multiplied as JAX does by default: as TF32 by NVIDIA's GPUs from Ampere on, in bfloat16 by TPUs
    (https://docs.jax.dev/en/latest/201/precision.html). At a higher `precision` that many cannot be reached.

    Args:
      device_kind: `jax.Device.device_kind`: "NVIDIA H100 80GB HBM3".
    """
    fitting = [name for name in _PEAKS if _names(name, device_kind)]
    if not fitting or _names("MIG", device_kind):
        return None
    found = _PEAKS[max(fitting, key=len)].get(dtype)
    return None if found is None else found * 1e12


def _names(name: str, device_kind: str) -> bool:
    """Whether a kind says `name` in whole words: "A10" is in "NVIDIA A10", and not in A100, A10G or A1000."""
    return re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", device_kind, re.IGNORECASE) is not None
