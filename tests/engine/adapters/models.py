"""One MLP in four libraries, and models with dropout and batch normalisation in three."""

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen, nnx

INPUTS = jax.ShapeDtypeStruct((5, 4), jnp.float32)


class NnxMlp(nnx.Module):
    def __init__(self, width=8, *, rngs):
        self.hidden = nnx.Linear(4, width, rngs=rngs)
        self.out = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


class LinenMlp(linen.Module):
    width: int = 8

    def setup(self):
        self.hidden, self.out = linen.Dense(self.width), linen.Dense(3)

    def __call__(self, x):
        return self.out(linen.relu(self.hidden(x)))


class EquinoxDense(eqx.Module):
    kernel: jax.Array
    bias: jax.Array

    def __init__(self, num_in, num_out, key):
        self.kernel, self.bias = jax.random.normal(key, (num_in, num_out)), jnp.zeros(num_out)

    def __call__(self, x):
        return x @ self.kernel + self.bias


class EquinoxMlp(eqx.Module):
    hidden: EquinoxDense
    activation: object
    out: EquinoxDense

    def __init__(self, width=8, *, key):
        self.hidden, self.out = EquinoxDense(4, width, key), EquinoxDense(width, 3, key)
        self.activation = jax.nn.relu

    def __call__(self, x):
        return self.out(self.activation(self.hidden(x)))


def init(key, width=8):
    def layer(num_in, num_out):
        return {"kernel": jax.random.normal(key, (num_in, num_out)), "bias": jnp.zeros(num_out)}

    return {"hidden": layer(4, width), "out": layer(width, 3)}


def apply(params, x):
    x = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return x @ params["out"]["kernel"] + params["out"]["bias"]


class NnxNorm(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(x))


class LinenNorm(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        x = linen.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)
        return linen.Dropout(0.5, deterministic=not train)(x)


class EquinoxNorm(eqx.Module):
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x, state, key=None):
        x, state = self.norm(x, state)
        return self.dropout(x, key=key), state
