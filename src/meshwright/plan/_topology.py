"""Descriptions of absent devices, to compile for.

JAX makes them (`jax.experimental.topologies`) with a plugin: `jax[cuda13]` or `jax[cuda12]` for GPUs, which
need no GPU for this, and libtpu for TPUs, which runs on x86-64 Linux.
"""

import importlib.util
import os
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from meshwright.errors import UsageError
from meshwright.plan._chips import Chip, Gpu, Tpu
from meshwright.plan._hardware import CPU, Hardware

GPU_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
TPU_PLUGIN = "libtpu"

TPU_ENVIRONMENT = {
    # Do not look for the metadata server of Google's cloud.
    "TPU_SKIP_MDS_QUERY": "1",
    # No device is used, so two plans may be made at a time.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def missing_compiler(hardware: Hardware) -> str | None:
    """Return the package to install in order to compile for this hardware; None if it is installed."""
    if isinstance(hardware.chip.target, Gpu):
        return None if any(map(_is_installed, GPU_PLUGINS)) else "meshwright[cuda13]"
    if isinstance(hardware.chip.target, Tpu):
        return None if _is_installed(TPU_PLUGIN) else "meshwright[tpu]"
    return None


def described_devices(hardware: Hardware) -> Sequence[jax.Device]:
    """Return devices that can be compiled for; no program can run on them, unless they are CPUs."""
    target = hardware.chip.target
    if isinstance(target, Gpu):
        return _gpus(hardware, target)
    if isinstance(target, Tpu):
        return _tpus(hardware, target)
    return _cpus(hardware.num_devices)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    # The plugin's parent package is not installed.
    except ModuleNotFoundError:
        return False


def _cpus(number: int) -> Sequence[jax.Device]:
    devices = jax.devices(CPU)
    if len(devices) < number:
        raise UsageError(
            f"cpu:{number} needs {number} CPU devices, but this process has {len(devices)}.\n  Start with "
            f"--fake-devices {number}, or XLA_FLAGS=--xla_force_host_platform_device_count={number}."
        )
    return devices[:number]


def _gpus(hardware: Hardware, target: Gpu) -> Sequence[jax.Device]:
    hosts, per_host = hardware.shape
    return topologies.get_topology_desc(
        platform="cuda",
        topology_name="",
        topology=f"1x{hosts}x{per_host}",  # slices, hosts, devices per host
        target_config=_target_config(hardware.chip, target),
    ).devices


def _tpus(hardware: Hardware, target: Tpu) -> Sequence[jax.Device]:
    os.environ |= {name: value for name, value in TPU_ENVIRONMENT.items() if name not in os.environ}
    options: dict[str, object] = {}
    if target.chip_config:
        options["chip_config_name"] = target.chip_config
    if target.wraps_from and all(side % target.wraps_from == 0 for side in hardware.shape):
        # Without it, the compiler turns all-gathers into all-reduces, which send twice the bytes.
        options["wrap"] = (True,) * len(hardware.shape)
    if hardware.num_slices > 1:
        options["num_slices"] = hardware.num_slices
    shape = "x".join(map(str, hardware.shape))
    name = f"{hardware.chip.name}:{shape}"
    return topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices


def _target_config(chip: Chip, gpu: Gpu) -> str:
    """Return XLA's `GpuTargetConfigProto` as text; the constants hold for all GPUs since Pascal."""
    major, minor = gpu.capability
    return f"""
        gpu_device_info {{
          threads_per_block_limit: 1024
          threads_per_warp: 32
          shared_memory_per_block: 49152
          shared_memory_per_core: {gpu.shared_bytes}
          threads_per_core_limit: 2048
          core_count: {gpu.cores}
          fpus_per_core: {gpu.lanes}
          block_dim_limit_x: 2147483647
          block_dim_limit_y: 65535
          block_dim_limit_z: 65535
          memory_bandwidth: {int(chip.memory_bandwidth)}
          l2_cache_size: {gpu.l2_bytes}
          clock_rate_ghz: {gpu.clock_ghz}
          device_memory_size: {int(chip.memory_bytes)}
          shared_memory_per_block_optin: {gpu.shared_bytes_of_block}
          cuda_compute_capability {{ major: {major} minor: {minor} }}
          registers_per_core_limit: 65536
          registers_per_block_limit: 65536
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 10 }}
        device_description_str: "{chip.device_kind}"
    """
