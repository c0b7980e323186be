"""Models of two stacks as trees of structs: names and sizes of Flax's in Transformers, two layers each."""

from .arrays import array, kernel, layer_norm, layers, post_norm_layer, rms_norm, table


def bart(D=768, F=3072, V=50265):
    def stack(**kind):
        return {
            "embed_positions": table(1026, D),
            "layernorm_embedding": layer_norm(D),
            "layers": layers(post_norm_layer(D, F, **kind)),
        }

    model = {"shared": table(V, D), "encoder": stack(), "decoder": stack(cross=True)}
    return {"model": model, "final_logits_bias": array(1, V)}


def whisper(D=768, F=3072, V=51865):
    encoder = {
        "conv1": {"kernel": array(3, 80, D), "bias": array(D)},
        "conv2": {"kernel": array(3, D, D), "bias": array(D)},
        "embed_positions": table(1500, D),
        "layers": layers(post_norm_layer(D, F, k_bias=False)),
        "layer_norm": layer_norm(D),
    }
    decoder = {
        "embed_tokens": table(V, D),
        "embed_positions": table(448, D),
        "layers": layers(post_norm_layer(D, F, cross=True, k_bias=False)),
        "layer_norm": layer_norm(D),
    }
    return {"model": {"encoder": encoder, "decoder": decoder}}


def t5(D=512, F=2048, V=32128, heads=8):
    return _t5(D, heads, V, {"wi": kernel(D, F), "wo": kernel(F, D)})


def t5_v1_1(D=512, F=1024, V=32128, heads=6):
    feed_forward = {"wi_0": kernel(D, F), "wi_1": kernel(D, F), "wo": kernel(F, D)}
    return _t5(D, heads, V, feed_forward) | {"lm_head": kernel(D, V)}


def _t5(D, heads, V, feed_forward):
    W = heads * 64
    attention = {"q": kernel(D, W), "k": kernel(D, W), "v": kernel(D, W), "o": kernel(W, D)}

    def block(first, *, cross):
        biased = attention | {"relative_attention_bias": table(32, heads)} if first else attention
        parts = [
            {"SelfAttention": biased, "layer_norm": rms_norm(D)},
            *([{"EncDecAttention": attention, "layer_norm": rms_norm(D)}] if cross else []),
            {"DenseReluDense": feed_forward, "layer_norm": rms_norm(D)},
        ]
        return {"layer": {str(i): part for i, part in enumerate(parts)}}

    def stack(*, cross):
        blocks = {str(i): block(first=i == 0, cross=cross) for i in range(2)}
        return {"block": blocks, "final_layer_norm": rms_norm(D)}

    return {"shared": table(V, D), "encoder": stack(cross=False), "decoder": stack(cross=True)}
