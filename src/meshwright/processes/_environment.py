"""The environment on which compiled programs depend: versions, flags, devices, and settings of JAX."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator

import jax

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
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    for name in _FLAGS:
        found |= {f"{name} {flag}": value for flag, value in _flags(os.environ.get(name, ""))}
    shown = (name for name in sorted(os.environ) if name.startswith("JAX_") or name in _VARIABLES)
    return found | {name: os.environ[name] for name in shown if not _MAY_DIFFER.match(name)}


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
