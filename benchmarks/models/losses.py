"""The models of `trees.py` as plain functions of parameters and a batch, each with its loss."""

import jax
import jax.numpy as jnp

from .layers import attend, cross_entropy, dense, heads, in_order, layer_norm, rms_norm, rotate


def llama(params, batch, *, head_size):
    """Also Gemma and Mistral."""
    model, tokens = params["model"], batch["tokens"]
    x = model["embed_tokens"]["embedding"][tokens]
    for layer in in_order(model["layers"]):
        attention = layer["self_attn"]
        y = rms_norm(layer["input_layernorm"], x)
        q, k, v = (heads(dense(attention[f"{name}_proj"], y), head_size) for name in "qkv")
        x = x + dense(attention["o_proj"], attend(rotate(q), rotate(k), v, causal=True))
        x = x + gated(layer["mlp"], rms_norm(layer["post_attention_layernorm"], x))
    return next_token_loss(rms_norm(model["norm"], x), head_of(params), tokens)


def gated(mlp, x):
    return dense(mlp["down_proj"], jax.nn.silu(dense(mlp["gate_proj"], x)) * dense(mlp["up_proj"], x))


def head_of(params):
    """The output layer [width, vocabulary]: its own, or the embedding's transpose."""
    return (
        params["lm_head"]["kernel"] if "lm_head" in params else params["model"]["embed_tokens"]["embedding"].T
    )


def next_token_loss(x, head, tokens):
    return cross_entropy((x @ head)[:, :-1], tokens[:, 1:])


def mixture(params, batch, *, head_size, num_chosen=2):
    """LLaMA with a mixture of experts, every expert computing every token, as MaxText's dense path does."""
    model, tokens = params["model"], batch["tokens"]
    x = model["embed_tokens"]["embedding"][tokens]
    for layer in in_order(model["layers"]):
        attention = layer["self_attn"]
        y = rms_norm(layer["input_layernorm"], x)
        q, k, v = (heads(dense(attention[f"{name}_proj"], y), head_size) for name in "qkv")
        x = x + dense(attention["o_proj"], attend(rotate(q), rotate(k), v, causal=True))
        x = x + experts(layer["moe"], rms_norm(layer["post_attention_layernorm"], x), num_chosen)
    return next_token_loss(rms_norm(model["norm"], x), head_of(params), tokens)


def experts(moe, x, num_chosen):
    scores, chosen = jax.lax.top_k(jax.nn.softmax(dense(moe["gate"], x)), num_chosen)
    weights = (jax.nn.one_hot(chosen, moe["wo"].shape[0]) * scores[..., None]).sum(-2)
    hidden = jax.nn.silu(jnp.einsum("btd,edf->ebtf", x, moe["wi_0"]))
    hidden = hidden * jnp.einsum("btd,edf->ebtf", x, moe["wi_1"]) * jnp.moveaxis(weights, -1, 0)[..., None]
    return jnp.einsum("ebtf,efd->btd", hidden, moe["wo"])


def gpt2(params, batch, *, head_size):
    model, tokens = params["transformer"], batch["tokens"]
    wte = model["wte"]["embedding"]
    x = wte[tokens] + model["wpe"]["embedding"][: tokens.shape[1]]
    for layer in in_order(model["h"]):
        fused = dense(layer["attn"]["c_attn"], layer_norm(layer["ln_1"], x))
        q, k, v = (heads(part, head_size) for part in jnp.split(fused, 3, axis=-1))
        x = x + dense(layer["attn"]["c_proj"], attend(q, k, v, causal=True))
        hidden = jax.nn.gelu(dense(layer["mlp"]["c_fc"], layer_norm(layer["ln_2"], x)))
        x = x + dense(layer["mlp"]["c_proj"], hidden)
    return next_token_loss(layer_norm(model["ln_f"], x), wte.T, tokens)


def bert(params, batch, *, head_size):
    """Masked tokens and next sentence."""
    model, tables = params["bert"], params["bert"]["embeddings"]
    words = tables["word_embeddings"]["embedding"]
    x = words[batch["tokens"]] + tables["token_type_embeddings"]["embedding"][batch["types"]]
    x = layer_norm(tables["LayerNorm"], x + tables["position_embeddings"]["embedding"][: x.shape[1]])
    for layer in in_order(model["encoder"]["layer"]):
        q, k, v = (
            heads(dense(layer["attention"]["self"][n], x), head_size) for n in ("query", "key", "value")
        )
        output = layer["attention"]["output"]
        x = layer_norm(output["LayerNorm"], x + dense(output["dense"], attend(q, k, v)))
        hidden = jax.nn.gelu(dense(layer["intermediate"]["dense"], x))
        x = layer_norm(layer["output"]["LayerNorm"], x + dense(layer["output"]["dense"], hidden))
    predictions = params["cls"]["predictions"]
    y = jax.nn.gelu(dense(predictions["transform"]["dense"], x))
    logits = layer_norm(predictions["transform"]["LayerNorm"], y) @ words.T + predictions["bias"]
    pooled = jnp.tanh(dense(model["pooler"]["dense"], x[:, 0]))
    follows = dense(params["cls"]["seq_relationship"], pooled)
    return cross_entropy(logits, batch["labels"]) + cross_entropy(follows, batch["follows"])


def t5(params, batch, *, head_size=64):
    """Version 1.1: gated feed-forward, its own output layer."""
    shared = params["shared"]["embedding"]
    encoded = t5_stack(params["encoder"], shared[batch["tokens"]], None, head_size)
    decoded = t5_stack(params["decoder"], shared[batch["labels"]], encoded, head_size)
    return next_token_loss(decoded, params["lm_head"]["kernel"], batch["labels"])


def t5_stack(stack, x, encoded, head_size):
    first, length = stack["block"]["0"]["layer"]["0"]["SelfAttention"], x.shape[1]
    distance = jnp.abs(jnp.arange(length)[:, None] - jnp.arange(length))  # buckets, near enough
    bias = first["relative_attention_bias"]["embedding"][jnp.minimum(distance, 31)]
    bias = jnp.moveaxis(bias, -1, 0)[None]
    for block in in_order(stack["block"]):
        attention, *cross, feed_forward = in_order(block["layer"])
        y = rms_norm(attention["layer_norm"], x)
        x = x + t5_attention(attention["SelfAttention"], y, y, head_size, causal=bool(cross), bias=bias)
        for layer in cross:
            y = rms_norm(layer["layer_norm"], x)
            x = x + t5_attention(layer["EncDecAttention"], y, encoded, head_size)
        wi, y = feed_forward["DenseReluDense"], rms_norm(feed_forward["layer_norm"], x)
        x = x + dense(wi["wo"], jax.nn.gelu(dense(wi["wi_0"], y)) * dense(wi["wi_1"], y))
    return rms_norm(stack["final_layer_norm"], x)


def t5_attention(layer, x, source, head_size, **how):
    q, k, v = (heads(dense(layer[n], y), head_size) for n, y in (("q", x), ("k", source), ("v", source)))
    return dense(layer["o"], attend(q, k, v, **how))


def vit(params, batch, *, head_size):
    model = params["vit"]
    kernel = model["embeddings"]["patch_embeddings"]["projection"]
    patches = convolve(kernel, batch["image"], stride=kernel["kernel"].shape[0], padding="VALID")
    patches = patches.reshape(patches.shape[0], -1, patches.shape[-1])
    first = jnp.broadcast_to(model["embeddings"]["cls_token"], (patches.shape[0], 1, patches.shape[-1]))
    x = jnp.concatenate([first, patches], axis=1) + model["embeddings"]["position_embeddings"]
    for layer in in_order(model["encoder"]["layer"]):
        y, attention = layer_norm(layer["layernorm_before"], x), layer["attention"]
        q, k, v = (heads(dense(attention["attention"][n], y), head_size) for n in ("query", "key", "value"))
        x = x + dense(attention["output"]["dense"], attend(q, k, v))
        hidden = jax.nn.gelu(dense(layer["intermediate"]["dense"], layer_norm(layer["layernorm_after"], x)))
        x = x + dense(layer["output"]["dense"], hidden)
    return cross_entropy(
        dense(params["classifier"], layer_norm(model["layernorm"], x)[:, 0]), batch["labels"]
    )


def whisper(params, batch, *, head_size):
    encoder, decoder = params["model"]["encoder"], params["model"]["decoder"]
    x = jax.nn.gelu(convolve(encoder["conv1"], batch["frames"]))
    x = jax.nn.gelu(convolve(encoder["conv2"], x, stride=2)) + encoder["embed_positions"]["embedding"]
    for layer in in_order(encoder["layers"]):
        x = whisper_layer(layer, x, None, head_size)
    encoded, words = layer_norm(encoder["layer_norm"], x), decoder["embed_tokens"]["embedding"]
    x = words[batch["labels"]] + decoder["embed_positions"]["embedding"][: batch["labels"].shape[1]]
    for layer in in_order(decoder["layers"]):
        x = whisper_layer(layer, x, encoded, head_size)
    return next_token_loss(layer_norm(decoder["layer_norm"], x), words.T, batch["labels"])


def whisper_layer(layer, x, encoded, head_size):
    y = layer_norm(layer["self_attn_layer_norm"], x)
    x = x + projected(layer["self_attn"], y, y, head_size, causal=encoded is not None)
    if encoded is not None:
        y = layer_norm(layer["encoder_attn_layer_norm"], x)
        x = x + projected(layer["encoder_attn"], y, encoded, head_size)
    hidden = jax.nn.gelu(dense(layer["fc1"], layer_norm(layer["final_layer_norm"], x)))
    return x + dense(layer["fc2"], hidden)


def projected(layer, x, source, head_size, **how):
    q, k, v = (
        heads(dense(layer[f"{n}_proj"], y), head_size) for n, y in (("q", x), ("k", source), ("v", source))
    )
    return dense(layer["out_proj"], attend(q, k, v, **how))


def mnist_cnn(params, batch):
    x = pool(jax.nn.relu(convolve(params["Conv_0"], batch["image"])))
    x = pool(jax.nn.relu(convolve(params["Conv_1"], x)))
    x = jax.nn.relu(dense(params["Dense_0"], x.reshape(x.shape[0], -1)))
    return cross_entropy(dense(params["Dense_1"], x), batch["labels"])


def lstm(params, batch):
    """Hochreiter and Schmidhuber (1997), as PyTorch and Flax write it: four gates in one matrix."""
    tokens = batch["tokens"]
    x = params["embed"]["embedding"][tokens[:, :-1]]
    for layer in in_order(params["layers"]):
        x = recurrent(layer, x)
    return cross_entropy(dense(params["head"], x), tokens[:, 1:])


def recurrent(layer, x):
    def one(state, x):
        c, h = state
        i, f, g, o = jnp.split(dense(layer["input"], x) + dense(layer["hidden"], h), 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    zeros = jnp.zeros((x.shape[0], layer["hidden"]["kernel"].shape[0]), x.dtype)
    _, out = jax.lax.scan(one, (zeros, zeros), x.swapaxes(0, 1))
    return out.swapaxes(0, 1)


def pool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def convolve(layer, x, *, stride=1, padding="SAME"):
    """Over all dimensions but the first (batch) and the last (features)."""
    space = "HWD"[: x.ndim - 2]
    numbers = (f"N{space}C", f"{space}IO", f"N{space}C")
    y = jax.lax.conv_general_dilated(
        x, layer["kernel"], (stride,) * len(space), padding, dimension_numbers=numbers
    )
    return y + layer["bias"] if "bias" in layer else y
