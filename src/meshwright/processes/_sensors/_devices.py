"""What JAX knows of the memory of the devices of this process, of whatever kind."""

from collections.abc import Iterator

import jax


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
