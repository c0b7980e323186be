"""Utilisation: the share of the devices' peak FLOP/s that a run reaches."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax

from meshwright.program._flops import Flops, Product

Write = Callable[[int, Mapping[str, float]], None]
"""A writer of reports, see `metrics.Writer`."""
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


# Figures are for one JAX device: half a chip of TPU v2, v3 and TPU7x, one die of an MI250X. They hold for
# dense products; the largest figures that vendors print are often for sparse products, and twice as high.
# If sources disagree, the vendor's figure is used.
#
# NVIDIA: The data sheets of V100, T4, A100, A10, A40, RTX A6000, L4, L40, L40S, H100, H200, Blackwell and
# the DGX GB200 page. TF32 is half of bfloat16 on each that has it. H200 NVL is in Lightning's table only.
# H20 is from torchtitan. AMD: The data sheets of MI250X, MI300X, MI325X, MI355X. 1307.4 instead of 1300
# follows from AMD's figure for MI300A and the numbers of compute units. Google:
# https://cloud.google.com/tpu/docs, per chip. JAX's own table (`jax.experimental.pallas.tpu`) has 46 and
# 140 instead of 46 and 123 for v2 and v3 per chip, and 920 instead of 918 for v6e.
#
# Unknown devices are left out: the A10G (not an A10; the vendor gives no figure), and parts of a GPU
# (MIG).
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
    teraflops = _PEAKS[max(fitting, key=len)].get(dtype)
    return None if teraflops is None else teraflops * 1e12


def _names(name: str, device_kind: str) -> bool:
    """Return whether `device_kind` contains `name` as whole words: "A10" is not in A100, A10G or A1000."""
    return re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", device_kind, re.IGNORECASE) is not None


def utilisation(counted: Flops, steps_per_second: float, devices: Sequence[jax.Device]) -> dict[str, float]:
    """Return the utilisation of `devices` as metrics, for steps with the counted operations.

      tflops_per_device  10¹² operations per second of each device without recomputation, if any are counted
      mfu, hfu           model and hardware FLOPs utilisation, without and with recomputation: the time that
                         the products would take at the devices' peak, divided by the time that they take.
                         Each dtype has its own peak (`peak_flops`). Absent if a peak is not known.

    Work that is not counted (`Flops.not_counted`) makes all of them too small.
    """
    return utilisation_on(counted, steps_per_second, devices[0].device_kind, len(devices))


def utilisation_on(
    counted: Flops, steps_per_second: float, device_kind: str, num_devices: int
) -> dict[str, float]:
    """Return the metrics of `utilisation` for devices that need not be present.

    Example:
      >>> counted = mw.observe.flops(jnp.dot, *2 * [jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)])
      >>> round(mw.program._internal.utilisation_on(counted, 3600.0, "NVIDIA H100 80GB HBM3", 1)["mfu"], 2)
      0.5
    """
    if not counted.hardware:
        return {}
    per_device = steps_per_second / num_devices
    metrics = {"tflops_per_device": counted.model * per_device / 1e12}
    needed = {product: count for product, count in counted.products.items() if not product.recomputed}
    least = _seconds_at_peak(needed, device_kind)
    least_with_recomputed = _seconds_at_peak(counted.products, device_kind)
    if least is None or least_with_recomputed is None:
        return metrics
    return {**metrics, "mfu": least * per_device, "hfu": least_with_recomputed * per_device}


def with_utilisation(write: Write, counted: Flops, devices: Sequence[jax.Device]) -> Write:
    """Return a writer that adds `utilisation` to reports with `steps_per_second`.

    Args:
      write: Writer that gets the extended reports.
      counted: Operations of one step, over all devices: `mw.observe.count_flops(step.jaxpr)`.
      devices: The devices of the run, all of one kind.

    Example:
      >>> counted = mw.observe.flops(jnp.dot, jnp.ones((100, 100)), jnp.ones((100, 50)))
      >>> show = lambda step, values: print(step, values)
      >>> write = mw.observe.with_utilisation(show, counted, jax.devices()[:1])
      >>> write(50, {"steps_per_second": 2e6})
      50 {'steps_per_second': 2000000.0, 'tflops_per_device': 2.0}
    """
    return _WithUtilisation((write,), counted, devices)


@dataclass(frozen=True)
class _WithUtilisation:
    """The writer that `with_utilisation` returns."""

    writers: tuple[Write, ...]
    """The writer that gets the reports, in a tuple; loggers look into it for screens."""
    counted: Flops
    devices: Sequence[jax.Device]

    def __call__(self, step: int, values: Mapping[str, float], /) -> None:
        rate = values.get("steps_per_second")
        more = {} if rate is None else utilisation(self.counted, rate, self.devices)
        for write in self.writers:
            write(step, {**values, **more})


def with_known_utilisation(write: Write, counted: Flops, devices: Sequence[jax.Device]) -> Write:
    """Return `with_utilisation` for a screen: `write` itself if the devices' peak is not known."""
    is_known = "mfu" in utilisation(counted, 1.0, devices)
    return with_utilisation(write, counted, devices) if is_known else write


def _seconds_at_peak(products: Mapping[Product, int], device_kind: str) -> float | None:
    """Return the seconds of `products` on one device at its peak; None if a dtype's peak is not known."""
    by_dtype: dict[str, int] = defaultdict(int)
    for product, count in products.items():
        by_dtype[product.dtype] += count
    seconds = 0.0
    for dtype, count in by_dtype.items():
        peak = peak_flops(device_kind, dtype)
        if peak is None:
            return None
        seconds += count / peak
    return seconds
