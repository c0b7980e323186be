"""How much of what the devices could do a run makes use of."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax

from meshwright.program._flops import Flops, Product
from meshwright.program._peaks import peak_flops

Write = Callable[[int, Mapping[str, float]], None]
"""A writer of reports, see `metrics.Writer`."""


def utilisation(counted: Flops, steps_per_second: float, devices: Sequence[jax.Device]) -> dict[str, float]:
    """Return what a report can say of steps of so many operations on `devices`, which are all alike.

      tflops_per_device  10¹² operations a second of each, recomputation left out; if any are counted
      mfu, hfu           model and hardware FLOPs utilisation, without and with recomputation: the share of
                         the time that the products would take at the devices' peak, each dtype at its own
                         (see `peak_flops`); if that is known

    What is not counted (`Flops.not_counted`) makes all of them too small.
    """
    return utilisation_on(counted, steps_per_second, devices[0].device_kind, len(devices))


def utilisation_on(
    counted: Flops, steps_per_second: float, device_kind: str, num_devices: int
) -> dict[str, float]:
    """Return what `utilisation` does for devices that need not be there."""
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
    """Return a writer that adds `utilisation` to reports that have `steps_per_second`.

    step.compile(state, batch)
    write = mw.program.with_utilisation(write, mw.program.count_flops(step.jaxpr), jax.devices())
    mw.fit(step, ..., log=mw.metrics.logger(write))
    """
    return _WithUtilisation((write,), counted, devices)


@dataclass(frozen=True)
class _WithUtilisation:
    """What `with_utilisation` returns."""

    writers: tuple[Write, ...]
    """The one that is handed the reports; loggers look among such for screens."""
    counted: Flops
    devices: Sequence[jax.Device]

    def __call__(self, step: int, values: Mapping[str, float], /) -> None:
        rate = values.get("steps_per_second")
        more = {} if rate is None else utilisation(self.counted, rate, self.devices)
        for write in self.writers:
            write(step, {**values, **more})


def with_known_utilisation(write: Write, counted: Flops, devices: Sequence[jax.Device]) -> Write:
    """Return the same for a screen: where the devices' peak is not known, nothing is added."""
    is_known = "mfu" in utilisation(counted, 1.0, devices)
    return with_utilisation(write, counted, devices) if is_known else write


def _seconds_at_peak(products: Mapping[Product, int], device_kind: str) -> float | None:
    """Return how long one device takes for `products` at best, or None if that is not known of a dtype."""
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
