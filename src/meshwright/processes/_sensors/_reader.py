"""One reading of everything: the worst of all devices of this process, and the rates since the last
reading.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import jax

from meshwright.processes._sensors._host import busy_share, host_counts, host_shares
from meshwright.processes._sensors._nvidia import nvidia_gpus
from meshwright.processes._sensors._tpu import tpu_chips

PREFIX = "machine/"
"""What the names of all readings begin with."""
Reader = Callable[[], dict[str, float]]
"""A function that returns readings by name, such as `machine/memory/device`."""
_LOWEST = ("busy/device", "busy/tensorcore", "megahertz/device")
"""Readings whose worst value is the lowest one."""


def machine_reader(clock: Callable[[], float] = time.monotonic) -> Reader:
    """Return a function that reads this host and the devices of this process, once with each call.

    Shares are from 0 to 1. Rates are those since the call before, so the first call has none. Of several
    devices each figure is the worst: the lowest clock, the highest temperature. What a machine does not tell
    is left out. A call takes less than a millisecond, and some 50 ms for each NVIDIA GPU.

    Example:
      >>> read = mw.processes._internal.machine_reader()
      >>> 0 < read()["machine/memory/host"] < 1
      True
    """
    gpus, tpus = _gpus(), _tpus()
    last: list[tuple[float, dict[str, float]]] = []

    def read() -> dict[str, float]:
        figures, counted = _split(gpus())
        counts, now = {**host_counts(), **counted}, clock()
        found = {**host_shares(), **worst([*device_memory(), *figures]), **tpus()}
        if last:
            then, before = last.pop()
            found |= busy_share(before, counts) | _rates(before, counts, now - then)
        last.append((now, counts))
        return {f"{PREFIX}{name}": value for name, value in found.items() if math.isfinite(value)}

    return read


def worst(readings: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return one reading of several devices or machines: the worst value of each name.

    Example:
      >>> mw.processes._internal.worst([{"megahertz/device": 1980.0}, {"megahertz/device": 345.0}])
      {'megahertz/device': 345.0}
    """
    found: dict[str, float] = {}
    for reading in readings:
        for name, value in reading.items():
            choose = min if name.removeprefix(PREFIX) in _LOWEST else max
            found[name] = choose(found.get(name, value), value)
    return found


def _rates(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return bytes per second. A count that has gone down, as after a reset, has no rate."""
    if seconds <= 0:
        return {}
    grown = {name: after[name] - before[name] for name in before.keys() & after.keys()}
    return {
        f"bytes_per_second/{name.removeprefix('bytes/')}": more / seconds
        for name, more in sorted(grown.items())
        if name.startswith("bytes/") and more >= 0
    }


def _split(
    gpus: Iterator[tuple[dict[str, float], dict[str, float]]],
) -> tuple[list[dict[str, float]], dict[str, float]]:
    found = list(gpus)
    return [figures for figures, _ in found], worst(counts for _, counts in found)


def _gpus() -> Callable[[], Iterator[tuple[dict[str, float], dict[str, float]]]]:
    devices = [each for each in jax.local_devices() if each.platform == "gpu"]
    if not devices:
        return lambda: iter(())
    return nvidia_gpus([each.local_hardware_id or 0 for each in devices])


def _tpus() -> Reader:
    return tpu_chips() if any(each.platform == "tpu" for each in jax.local_devices()) else dict


def device_memory() -> Iterator[dict[str, float]]:
    """Yield for each device the share of its memory that JAX has in use, now and at most, from 0 to 1.

    CPUs tell nothing: their memory is that of the host.
    """
    for device in jax.local_devices():
        told = device.memory_stats() or {}
        limit = told.get("bytes_limit") or told.get("bytes_reservable_limit")
        if limit:
            in_use = told.get("bytes_in_use", 0)
            yield {
                "memory/device": in_use / limit,
                "memory/device_peak": told.get("peak_bytes_in_use", in_use) / limit,
            }
