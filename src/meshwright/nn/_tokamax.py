"""Attention of tokamax, a library of kernels of Pallas for GPUs and TPUs, and the table of what it supports.

It is taken only where it is asked for by name: whether it is faster than other forms was not measured. Like
splash attention it is mapped over the mesh: rows over the batch axes, heads over `tensor`.
"""

from importlib.util import find_spec

import jax
from jax.sharding import PartitionSpec as P

from meshwright.nn._hardware import Hardware
from meshwright.nn._inputs import AttentionInputs
from meshwright.nn._splash import axes_of_mesh, why_not_over_mesh

_IMPLEMENTATIONS = ("mosaic", "triton", "xla_chunked")
"""tokamax's kernels in the order in which they are tried; the last one works everywhere."""


def why_not_tokamax(given: AttentionInputs, with_lse: bool, hardware: Hardware) -> str | None:
    """Return the reason why tokamax cannot compute this on the hardware; None if it can."""
    reasons = {
        "tokamax is not installed (pip install 'meshwright[tokamax]')": find_spec("tokamax") is None,
        "it takes segments only as a mask of the size queries × keys": given.segments is not None,
        "it takes a bias only as an array of the size queries × keys": given.bias is not None,
        "its window must be a number": not (given.window is None or isinstance(given.window, int)),
        "it does not give 0 to queries that see no key, and here there may be some": given.leaves_rows_empty,
        "it does not return the log-sum-exp": with_lse,
    }
    return next((reason for reason, holds in reasons.items() if holds), why_not_over_mesh(given, hardware))


def tokamax(given: AttentionInputs) -> jax.Array:
    """Return the attention, [B, T, N, H], computed by the first of tokamax's kernels that can."""
    from tokamax import dot_product_attention  # here, as it is an extra, and loads for seconds

    before = None if given.window is None else int(given.window) - 1
    window = None if before is None else (before, 0 if given.causal else before)

    def local(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return dot_product_attention(
            *(q, k, v),
            scale=float(given.scale),
            is_causal=given.causal,
            local_window_size=window,
            logits_soft_cap=given.softcap,
            implementation=_IMPLEMENTATIONS,
        )

    rows, heads = axes_of_mesh(given)
    if rows or heads:
        spec = P(rows or None, None, heads)
        local = jax.shard_map(local, in_specs=(spec, spec, spec), out_specs=spec, check_vma=False)
    return local(given.q, given.k, given.v)
