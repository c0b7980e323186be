"""The layers that models are made of, as trees of structs."""

import jax
import jax.numpy as jnp


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def kernel(*shape):
    return {"kernel": array(*shape)}


def dense(rows, columns):
    return {"kernel": array(rows, columns), "bias": array(columns)}


def table(rows, width):
    return {"embedding": array(rows, width)}


def layer_norm(width):
    return {"scale": array(width), "bias": array(width)}


def rms_norm(width):
    return {"weight": array(width)}


def layers(layer, num_layers=2):
    return {str(i): layer for i in range(num_layers)}


def separate_attention(D, *, k_bias=True):
    projections = {name: dense(D, D) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    return projections if k_bias else projections | {"k_proj": kernel(D, D)}


def post_norm_layer(D, F, *, cross=False, k_bias=True):
    """BART's, OPT's and Whisper's."""
    layer = {
        "self_attn": separate_attention(D, k_bias=k_bias),
        "self_attn_layer_norm": layer_norm(D),
        "fc1": dense(D, F),
        "fc2": dense(F, D),
        "final_layer_norm": layer_norm(D),
    }
    cross_attention = {
        "encoder_attn": separate_attention(D, k_bias=k_bias),
        "encoder_attn_layer_norm": layer_norm(D),
    }
    return layer | cross_attention if cross else layer
