"""The environment that a compiled program depends on: versions, flags, devices, settings of JAX."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator

import jax

_PACKAGES = ("meshwright", "jax", "jaxlib", "numpy", "optax", "ml_dtypes")
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_VARIABLES = ("NVIDIA_TF32_OVERRIDE",)
_OWN = re.compile(
    r"JAX_(PROCESS_|NUM_PROCESSES|COORDINATOR_|LOCAL_DEVICE_IDS|CUDA_VISIBLE|ROCM_VISIBLE|.*(LOG|DUMP|_DIR|TRACEBACK))"
)
"""Variables of JAX that each process may have for itself."""
_OWN_FLAGS = re.compile(r"--xla_(dump_|force_host_platform_device_count|.*(_dir|_path|_file)$)")
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
    """Return versions, and the flags and variables of which programs depend. Touches no device."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    for name in _FLAGS:
        found |= {f"{name} {flag}": value for flag, value in _flags(os.environ.get(name, ""))}
    shown = (name for name in sorted(os.environ) if name.startswith("JAX_") or name in _VARIABLES)
    return found | {name: os.environ[name] for name in shown if not _OWN.match(name)}


def hardware() -> dict[str, str]:
    """Return the kinds of this process's devices, and the settings of JAX of which numbers depend."""
    devices = jax.local_devices()
    settings = {name: repr(getattr(jax.config, name)) for name in _SETTINGS if hasattr(jax.config, name)}
    return {
        "devices": ", ".join(sorted({device.device_kind for device in devices})),
        "platform": " ".join(devices[0].client.platform_version.split()),
        **settings,
    }


def _flags(text: str) -> Iterator[tuple[str, str]]:
    """Yield the flags of a variable and their values, however they are ordered."""
    for flag in sorted(text.split()):
        name, _, value = flag.partition("=")
        if not _OWN_FLAGS.match(name):
            yield name, value
