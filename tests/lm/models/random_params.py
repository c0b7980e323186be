import functools

import jax
import jax.numpy as jnp
import numpy as np


def params_of(model, cfg):
    """Parameters that are all random, so that no norm and no bias goes unnoticed."""
    shapes = jax.eval_shape(functools.partial(model.init, cfg), jax.random.key(0))
    random = np.random.default_rng(1)
    return jax.tree.map(lambda x: jnp.asarray(random.normal(0, 0.3, x.shape), x.dtype), shapes)
