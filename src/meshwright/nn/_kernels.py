"""Attention kernels of vendors, and tables of what they support: cuDNN's, and splash attention for TPUs.

Splash attention is JAX's Pallas kernel (`jax.experimental.pallas.ops.tpu.splash_attention`). It computes the
mask of a block from positions, skips blocks that are masked as a whole, and has kernels for the gradient. XLA
cannot split a kernel over devices, so splash attention is mapped over the surrounding mesh: rows over the
batch axes, heads over `tensor`.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from meshwright.nn._blockwise import blockwise
from meshwright.nn._hardware import Hardware
from meshwright.nn._inputs import AttentionInputs
from meshwright.parallel._internal import SEQUENCE, TENSOR, axes_splitting

_NARROW = (jnp.bfloat16, jnp.float16)


def why_not_cudnn(inputs: AttentionInputs, with_lse: bool, hardware: Hardware) -> str | None:
    """Return the reason why the kernel cannot compute this on the hardware; None if it can.

    The kernel would take segments and biases only as arrays of the size of all scores. The blockwise form
    computes these.
    """
    size = inputs.q.shape[-1]
    largest = 256 if hardware.capability >= (9, 0) else 128
    dtypes = {x.dtype for x in (inputs.q, inputs.k, inputs.v)}
    has_window = inputs.window is not None
    reasons = {
        "it needs an NVIDIA GPU of compute capability 8.0 or higher": hardware.capability < (8, 0),
        "q, k and v are not all bfloat16 or all float16": len(dtypes) > 1
        or not dtypes & {*map(jnp.dtype, _NARROW)},
        f"heads have {size} features: it takes multiples of 8 up to {largest}": size % 8 != 0
        or size > largest,
        "it has no soft cap": inputs.softcap is not None,
        "it takes segments only as a mask of the size queries × keys": inputs.segments is not None,
        "it takes a bias only as an array of the size queries × keys": inputs.bias is not None,
        "its window must be a number, with causal=True": has_window
        and not (inputs.causal and isinstance(inputs.window, int)),
        "with causal=True it needs as many queries as keys": inputs.causal
        and inputs.q.shape[1] != inputs.k.shape[1],
        "it does not return the log-sum-exp": with_lse,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def cudnn(inputs: AttentionInputs) -> jax.Array:
    """Return the attention, [B, T, N, H], computed by the kernel."""
    return jax.nn.dot_product_attention(
        inputs.q,
        inputs.k,
        inputs.v,
        is_causal=inputs.causal,
        scale=float(inputs.scale),
        local_window_size=None if inputs.window is None else (int(inputs.window) - 1, 0),
        implementation="cudnn",
    )


_BLOCKS = (512, 256, 128)
"""Lengths of blocks, the best first: MaxText's, and what is left for shorter rows."""
_DTYPES = (jnp.dtype("bfloat16"), jnp.dtype("float32"))


def why_not_splash(inputs: AttentionInputs, _with_lse: bool, hardware: Hardware) -> str | None:
    """Return the reason why the kernel cannot compute this on the hardware; None if it can."""
    (_, T, _, H), S = inputs.q.shape, inputs.k.shape[1]
    dtypes = {x.dtype for x in (inputs.q, inputs.k, inputs.v)}
    reasons = {
        "it needs a TPU": hardware.platform != "tpu",
        "q, k and v are not all bfloat16 or all float32": len(dtypes) > 1 or not dtypes & {*_DTYPES},
        f"heads have {H} features: it takes multiples of 16 from 64 to 256": H % 16 != 0
        or not 64 <= H <= 256,
        f"rows have {T} queries and {S} keys: it takes multiples of {_BLOCKS[-1]}": T % _BLOCKS[-1] != 0
        or S % _BLOCKS[-1] != 0,
        "it computes no query that sees no key, and here there may be some": inputs.leaves_rows_empty,
        "its window must be a number": not (inputs.window is None or isinstance(inputs.window, int)),
        "it takes no bias": inputs.bias is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), _why_not_over_mesh(inputs, hardware))


def _why_not_over_mesh(inputs: AttentionInputs, hardware: Hardware) -> str | None:
    """Return the reason why a kernel cannot be mapped over the mesh; None if it can."""
    B, K, mesh = inputs.q.shape[0], inputs.k.shape[2], dict(hardware.mesh)
    heads_over = mesh.get(TENSOR, 1)
    is_split = any(size > 1 for axis, size in mesh.items() if axis != TENSOR)
    reasons = {
        f"the axis {SEQUENCE} splits rows": mesh.get(SEQUENCE, 1) > 1,
        "there are several devices and no mesh to split it over": hardware.num_devices > 1 and not mesh,
        "it is in a shard_map over some axes of the mesh, or axes are explicit": hardware.is_partly_manual,
        f"the mesh does not divide {B} rows": is_split and not axes_splitting(B),
        f"{TENSOR}={heads_over} does not divide {K} heads of keys": K % heads_over != 0,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def splash(inputs: AttentionInputs, *, interpret: bool = False) -> jax.Array:
    """Return the attention, [B, T, N, H], computed by the kernel."""
    return _over_mesh(inputs, interpret)


def splash_with_lse(inputs: AttentionInputs, *, interpret: bool = False) -> tuple[jax.Array, jax.Array]:
    """Return the attention, [B, T, N, H], and the log-sum-exp, float32[B, N, T], computed by the kernel.

    The kernel has no gradient of the log-sum-exp: it is computed block by block.
    """

    def with_arrays(q: jax.Array, k: jax.Array, v: jax.Array, segments: Any) -> AttentionInputs:
        return replace(inputs, q=q, k=k, v=v, segments=segments)

    @jax.custom_vjp
    def computed(*arrays: Any) -> tuple[jax.Array, jax.Array]:
        return _over_mesh(with_arrays(*arrays), interpret, with_lse=True)

    def gradient(arrays: Any, cotangents: Any) -> tuple[Any, ...]:
        q, k, v, segments = arrays
        _, pullback = jax.vjp(lambda q, k, v: blockwise(with_arrays(q, k, v, segments)), q, k, v)
        return (*pullback(cotangents), None)

    computed.defvjp(lambda *arrays: (computed(*arrays), arrays), gradient)
    return computed(inputs.q, inputs.k, inputs.v, inputs.segments)


def _over_mesh(inputs: AttentionInputs, interpret: bool, *, with_lse: bool = False) -> Any:
    # The kernel has no scale. Multiplied in float32, the queries are rounded once.
    q = (inputs.q.astype(jnp.float32) * inputs.scale).astype(inputs.q.dtype)
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, inputs.k, inputs.v))
    segments = (
        None
        if inputs.segments is None
        else _kernels().SegmentIds(*(x.astype(jnp.int32) for x in inputs.segments))
    )
    local = partial(_on_one_device, inputs, interpret, with_lse)
    rows, heads = _axes_of_mesh(inputs)
    if rows or heads:
        heads_spec, rows_spec = P(rows or None, heads), P(rows or None)
        specs = (heads_spec, heads_spec, heads_spec, None if segments is None else rows_spec)
        # The kernel does not say how its results vary over the mesh, so that cannot be checked.
        local = jax.shard_map(local, in_specs=specs, out_specs=heads_spec, check_vma=False)
    if not with_lse:
        return jnp.swapaxes(local(q, k, v, segments), 1, 2)
    out, lse = local(q, k, v, segments)
    return jnp.swapaxes(out, 1, 2), lse


def _kernels() -> Any:
    # Imported here, as this module loads Pallas.
    from jax.experimental.pallas.ops.tpu import splash_attention

    return splash_attention


def _axes_of_mesh(inputs: AttentionInputs) -> tuple[tuple[str, ...], str | None]:
    """Return the axes of the surrounding mesh that split rows, and the one that splits heads."""
    mesh = jax.sharding.get_abstract_mesh()
    sizes = {axis: size for axis, size in mesh.shape.items() if axis not in mesh.manual_axes}
    rows = tuple(axis for axis in axes_splitting(inputs.q.shape[0]) if axis in sizes)
    is_larger = math.prod(sizes.values()) > 1
    return (rows, TENSOR if TENSOR in sizes else None) if is_larger else ((), None)


def _on_one_device(
    inputs: AttentionInputs,
    interpret: bool,
    with_lse: bool,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: Any,
) -> Any:
    """Return [B, N, T, H], for the rows and heads of one device; with `with_lse`, also [B, N, T]."""
    num_heads, T, S = q.shape[1], q.shape[2], k.shape[2]
    kernels = _kernels()
    kernel = kernels.make_splash_mha(
        kernels.MultiHeadMask([_mask(inputs, T, S)] * num_heads),
        block_sizes=_blocks(T, S),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=inputs.softcap,
        interpret=interpret,
        save_residuals=with_lse,
    )
    if not with_lse:
        return jax.vmap(kernel)(q, k, v, segments)
    out, (lse,) = jax.vmap(kernel)(q, k, v, segments)
    return out, lse


def _mask(inputs: AttentionInputs, T: int, S: int) -> Any:
    kernels = _kernels()
    if inputs.window is not None:
        reach = int(inputs.window) - 1
        return kernels.LocalMask((T, S), (reach, 0 if inputs.causal else reach), offset=0)
    return kernels.CausalMask((T, S)) if inputs.causal else kernels.FullMask((T, S))


def _blocks(T: int, S: int) -> Any:
    queries, keys = (next(size for size in _BLOCKS if length % size == 0) for length in (T, S))
    return _kernels().BlockSizes(
        block_q=queries,
        block_kv=keys,
        block_kv_compute=keys,
        block_q_dkv=queries,
        block_kv_dkv=keys,
        block_kv_dkv_compute=keys,
        block_q_dq=queries,
        block_kv_dq=keys,
    )
