"""Versions, flags, devices, settings and clocks, on which programs and logs depend besides the code."""

import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Iterator, Sequence

import jax

from meshwright.processes._exchange import Exchange

_PACKAGES = ("meshwright", "jax", "jaxlib", "numpy", "optax", "ml_dtypes")
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_VARIABLES = ("NVIDIA_TF32_OVERRIDE",)
_MAY_DIFFER = re.compile(
    r"JAX_(PROCESS_|NUM_PROCESSES|COORDINATOR_|LOCAL_DEVICE_IDS|CUDA_VISIBLE|ROCM_VISIBLE|.*(LOG|DUMP|_DIR|TRACEBACK))"
)
"""Variables of JAX that may differ between processes."""
_FLAGS_MAY_DIFFER = re.compile(r"--xla_(dump_|force_host_platform_device_count|.*(_dir|_path|_file)$)")
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
    "jax_numpy_dtype_promotion",
    "jax_disable_jit",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_use_simplified_jaxpr_constants",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_optimization_level",
)


def software() -> dict[str, str]:
    """Return the versions, flags and variables on which programs depend, by name. It uses no device."""
    versions = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    for name in _FLAGS:
        versions |= {f"{name} {flag}": value for flag, value in _flags(os.environ.get(name, ""))}
    names = (name for name in sorted(os.environ) if name.startswith("JAX_") or name in _VARIABLES)
    return versions | {name: os.environ[name] for name in names if not _MAY_DIFFER.match(name)}


def hardware() -> dict[str, str]:
    """Return this process's devices and the settings of JAX on which numbers depend, by name."""
    devices = jax.local_devices()
    kinds = ", ".join(sorted({device.device_kind for device in devices}))
    settings = {name: repr(getattr(jax.config, name)) for name in _SETTINGS if hasattr(jax.config, name)}
    return {
        "devices": f"{len(devices)} × {kinds}",
        "platform": " ".join(devices[0].client.platform_version.split()),
        **settings,
    }


def _flags(text: str) -> Iterator[tuple[str, str]]:
    """Yield the flags in a variable and their values, sorted, because their order does not matter."""
    for flag in sorted(text.split()):
        name, _, value = flag.partition("=")
        if not _FLAGS_MAY_DIFFER.match(name):
            yield name, value


_MOST_SECONDS = 5
"""Larger differences are reported. Nothing that is computed depends on the clocks."""


def clock_warning(exchange: Exchange) -> str:
    """Return a text about clocks that differ, or "" if none do. Collective.

    The times are read just after an exchange, so they differ by the network's delay, and by the clocks.
    """
    exchange.all_reduce("the clocks", None, lambda values: None)
    return describe_clocks(exchange.all_reduce("the clocks", time.time(), lambda times: times))


def describe_clocks(times: Sequence[float]) -> str:
    """Return a text about clocks that differ from that of process 0; "" if none do."""
    wrong = [number for number, seconds in enumerate(times) if abs(seconds - times[0]) > _MOST_SECONDS]
    if not wrong:
        return ""
    first = wrong[0]
    difference = times[first] - times[0]
    side = "ahead of" if difference > 0 else "behind"
    others = f", and {len(wrong) - 1} more differ" if len(wrong) > 1 else ""
    return (
        f"the clock of process {first} is {abs(difference):.0f} s {side} that of process 0{others}: times in "
        "logs and files do not compare. Set the clocks of the machines by NTP."
    )
