"""Were these predictions made with these parameters? A number that tells, for arrays of any size.

It is computed where the arrays are, in integers modulo 2^32: sums of those depend on no order, so that the
same values have the same fingerprint on every mesh.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from meshwright import tree
from meshwright.sharding import Layout
from meshwright.tree import PyTree


def fingerprint(arrays: PyTree, layout: Layout) -> str:
    """Return eight hexadecimal digits of the names, shapes and values of `arrays`. Collective.

    Values that are equal in float32 are taken to be equal.
    """
    described = [f"{name}{list(x.shape)}{x.dtype}" for name, x in tree.named_leaves(arrays).items()]
    sums = jax.jit(_sums, out_shardings=layout.replicated)(arrays)
    return f"{zlib.crc32(np.asarray(sums).tobytes(), zlib.crc32('/'.join(described).encode())):08x}"


def _sums(arrays: PyTree) -> jax.Array:
    return jnp.asarray([_sum(x) for x in jax.tree.leaves(arrays)], jnp.uint32)


def _sum(x: jax.Array) -> jax.Array:
    """Return a uint32 that changes with each element and its place."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    places = jnp.zeros(x.shape, jnp.uint32)
    for dim, size in enumerate(x.shape):
        places = places * size + jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim)
    values = jax.lax.bitcast_convert_type(jnp.real(x).astype(jnp.float32), jnp.uint32)
    return jnp.sum(_mixed(values ^ _mixed(places)), dtype=jnp.uint32)


def _mixed(x: jax.Array) -> jax.Array:
    """Each bit of the result depends on each of `x`: the finaliser of MurmurHash3 (Appleby, 2011)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
