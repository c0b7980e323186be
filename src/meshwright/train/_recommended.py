"""Options of the XLA compiler that vendors and other trainers recommend, by hardware.

The sources of the table:

  JAX      https://docs.jax.dev/en/latest/gpu_performance_tips.html
  NVIDIA   https://docs.nvidia.com/jax-toolbox/performance-profiling/gpu-performance
  MaxText  github.com/AI-Hypercomputer/maxtext, benchmarks/xla_flags_library.py
  AXLearn  github.com/apple/axlearn, axlearn/common/compiler_options.py

`benchmarks/compiler_options.py` compiles a decoder with and without them for absent devices; the effects in
the comments are from there (jax 0.10.2, 7 B parameters, fsdp=8).

Options that others set and that are left out here, because they change results or suit some models only:
  xla_tpu_spmd_rng_bit_generator_unsafe (random bits would depend on the mesh),
  xla_gpu_enable_triton_gemm (which library is faster depends on the shapes),
  xla_tpu_enable_all_experimental_scheduler_features and the others for offloading to the host.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import jax

from meshwright.train._compiler_options import CompilerOptions

GIB = 2**30

_GPU: CompilerOptions = {
    # Moves the start of a collective before computations and its end behind them. Since XLA estimates
    # latencies of Hopper and Blackwell by itself, it is on there in any case; for A100s, 21 of 22
    # collectives overlap with computation instead of 1. JAX, NVIDIA.
    "xla_gpu_enable_latency_hiding_scheduler": True,
    # Gathers the next layer's parameters of a scanned model while this layer is computed, and reduces the
    # gradients of the last one. Takes memory for one more layer. jax 0.12 has no such options: there they
    # are left out. JAX, NVIDIA.
    "xla_gpu_enable_pipelined_all_gather": True,
    "xla_gpu_enable_pipelined_reduce_scatter": True,
    "xla_gpu_enable_pipelined_all_reduce": True,
    # Writes two iterations of a loop into one, so that the second's parameters need not be copied. The
    # program doubles, and so does the time to compile it. JAX, NVIDIA.
    "xla_gpu_enable_while_loop_double_buffering": True,
    # Joins the collectives of a layer up to this number of bytes, since large ones use links better: 65
    # all-gathers in a step instead of 450. NVIDIA: at least the size of a layer; this is that of 500 million
    # parameters in bfloat16, and MaxText's value for H100s.
    "xla_gpu_all_gather_combine_threshold_bytes": GIB,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": GIB,
    # Smaller, since the last gradients are all-reduced when nothing is left to hide them. MaxText for H100s.
    "xla_gpu_all_reduce_combine_threshold_bytes": GIB // 8,
}
_BLACKWELL: CompilerOptions = {
    # CUDA graphs of these operations alone. NVIDIA, measured on B200s.
    "xla_gpu_enable_command_buffer": "FUSION,CUSTOM_CALL",
}
_TPU: CompilerOptions = {
    # On by default in present versions of libtpu; AXLearn sets it for all TPUs.
    "xla_tpu_enable_latency_hiding_scheduler": True,
}
_TPU_V4: CompilerOptions = {
    # On by default since v5. AXLearn.
    "xla_enable_async_all_gather": True,
    "xla_enable_async_collective_permute": True,
}
_TPU_V5_AND_LATER: CompilerOptions = {
    # Continuation fusion: an all-gather goes on inside the computations around it. MaxText; AXLearn for v6e.
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    "xla_enable_async_all_gather": True,
}
_TPU_V6E: CompilerOptions = {
    # More of the fast memory for one operation, less for what is loaded ahead. MaxText's value for dense
    # models, AXLearn.
    "xla_tpu_scoped_vmem_limit_kib": 98304,
}
_TPU_SLICES: CompilerOptions = {
    # All-reduces of gradients between slices run while the next layer's gradients are computed. MaxText,
    # AXLearn.
    "xla_tpu_enable_data_parallel_all_reduce_opt": True,
    "xla_tpu_data_parallel_opt_different_sized_ops": True,
    # Joins the exchanges between slices into few stages, and starts slices together. AXLearn.
    "xla_tpu_enable_sunk_dcn_allreduce_done_with_host_reduction": True,
    "xla_tpu_enable_megascale_barrier": True,
}


class _Row(NamedTuple):
    kinds: str
    """A regular expression that is searched for in the kind of a device."""
    options: CompilerOptions
    least_slices: int = 1
    """The smallest number of TPU slices for which the options hold."""


_TABLE = (
    _Row(r"NVIDIA (A100|H100|H200|GH200|B200|GB200|B300|GB300)\b", _GPU),
    _Row(r"NVIDIA G?B[23]00\b", _BLACKWELL),
    _Row(r"TPU v\d", _TPU),
    _Row(r"TPU v4\b", _TPU_V4),
    _Row(r"TPU v[56]", _TPU_V5_AND_LATER),
    _Row(r"TPU v6", _TPU_V6E),
    _Row(r"TPU v\d", _TPU_SLICES, least_slices=2),
)


def recommended_options(devices: Sequence[jax.Device] | None = None) -> CompilerOptions:
    """Return XLA options that vendors and other trainers recommend for the kind of `devices`.

    They let communication run while the devices compute, and join small collectives. They were not measured
    by us: compare the time of a step with and without them. `mw.Compile(recommended=True)` sets them for a
    run, and leaves out those that the installed compiler does not know. `docs/how-to/speed.md` says more.

    Args:
      devices: The devices of the run; None means all. Descriptions of devices that are not here work, too.

    Returns:
      The options by name; empty for hardware without recommendations, such as CPUs.

    Example:
      >>> mw.train.recommended_options()
      {}
    """
    devices = jax.devices() if devices is None else devices
    num_slices = len({getattr(device, "slice_index", 0) for device in devices})
    return recommended_for(devices[0].device_kind, num_slices)


def recommended_for(device_kind: str, num_slices: int = 1) -> CompilerOptions:
    """Return what `recommended_options` returns for devices that are not here.

    Args:
      device_kind: The kind of the devices, as JAX calls it.
      num_slices: The number of TPU slices.

    Example:
      >>> len(mw.train.recommended_for("NVIDIA H100 80GB HBM3")) > 0
      True
    """
    found: dict[str, bool | int | float | str] = {}
    for row in _TABLE:
        if re.search(row.kinds, device_kind) and num_slices >= row.least_slices:
            found |= row.options
    return found
