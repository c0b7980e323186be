"""What the models are made of. A dense layer is `{"kernel": [in, out]}`, with or without a `bias`."""

import jax
import jax.numpy as jnp
import optax


def dense(layer, x):
    y = x @ layer["kernel"]
    return y + layer["bias"] if "bias" in layer else y


def layer_norm(layer, x):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * layer["scale"] + layer["bias"]


def rms_norm(layer, x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * layer["weight"]


def heads(x, head_size):
    """[batch, time, heads × head] -> [batch, time, heads, head]."""
    return x.reshape(*x.shape[:2], -1, head_size)


def attend(q, k, v, *, causal=False, bias=None):
    """[batch, time, heads, head] each, `k` and `v` perhaps of fewer heads -> [batch, time, heads × head]."""
    mixed = jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=causal)
    return mixed.reshape(*mixed.shape[:2], -1)


def rotate(x):
    """Rotary positions (Su et al., 2021) in halves, as LLaMA's."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def in_order(layers):
    """The layers of `{"0": …, "1": …}`."""
    return [layers[str(i)] for i in range(len(layers))]
