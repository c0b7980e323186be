"""Utilisation: the share of the devices' peak FLOP/s that a run reaches."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax

from meshwright.program._flops import Flops, Product
from meshwright.program._peaks import peak_flops

Write = Callable[[int, Mapping[str, float]], None]
"""A writer of reports, see `metrics.Writer`."""


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
    told = {"tflops_per_device": counted.model * per_device / 1e12}
    kept = {product: count for product, count in counted.products.items() if not product.recomputed}
    least = _seconds_at_peak(kept, device_kind)
    least_with_recomputed = _seconds_at_peak(counted.products, device_kind)
    if least is None or least_with_recomputed is None:
        return told
    return {**told, "mfu": least * per_device, "hfu": least_with_recomputed * per_device}


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
    """Return the seconds of `products` on one device at its peak.

    None if the peak of a dtype is not known.
    """
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
