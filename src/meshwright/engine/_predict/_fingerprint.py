"""A fingerprint of parameters, which shows whether predictions in a file were made with the same ones.

It is computed on the devices, in integers modulo 2^32. The sum of such integers does not depend on the order
of the terms, so the same values have the same fingerprint on every mesh.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.parallel._internal import Layout


def fingerprint(arrays: PyTree, layout: Layout) -> str:
    """Return a hash of the names, shapes and values of `arrays`, as eight hexadecimal digits. Collective.

    Values are hashed as float32: values that are equal in float32 count as equal.
    """
    descriptions = [f"{name}{list(x.shape)}{x.dtype}" for name, x in tree.named_leaves(arrays).items()]
    sums = jax.jit(_hashes, out_shardings=layout.replicated)(arrays)
    return f"{zlib.crc32(np.asarray(sums).tobytes(), zlib.crc32('/'.join(descriptions).encode())):08x}"


def _hashes(arrays: PyTree) -> jax.Array:
    return jnp.asarray([_hash(x) for x in jax.tree.leaves(arrays)], jnp.uint32)


def _hash(x: jax.Array) -> jax.Array:
    """Return a uint32 that depends on each element and on its index."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    indices = jnp.zeros(x.shape, jnp.uint32)
    for dim, size in enumerate(x.shape):
        indices = indices * size + jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim)
    values = jax.lax.bitcast_convert_type(jnp.real(x).astype(jnp.float32), jnp.uint32)
    return jnp.sum(_murmur(values ^ _murmur(indices)), dtype=jnp.uint32)


def _murmur(x: jax.Array) -> jax.Array:
    """Return the finaliser of MurmurHash3 (Appleby, 2011): each bit depends on every bit of `x`."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
