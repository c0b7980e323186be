"""Language models as trees of structs: names and sizes of Flax's in Transformers, two layers."""

from .arrays import array, dense, kernel, layer_norm, layers, post_norm_layer, rms_norm, table


def llama(D=4096, F=11008, V=32000, kv=4096, tied=False):
    attention = {
        "q_proj": kernel(D, D),
        "k_proj": kernel(D, kv),
        "v_proj": kernel(D, kv),
        "o_proj": kernel(D, D),
    }
    layer = {
        "self_attn": attention,
        "mlp": {"gate_proj": kernel(D, F), "up_proj": kernel(D, F), "down_proj": kernel(F, D)},
        "input_layernorm": rms_norm(D),
        "post_attention_layernorm": rms_norm(D),
    }
    model = {"embed_tokens": table(V, D), "layers": layers(layer), "norm": rms_norm(D)}
    return {"model": model} if tied else {"model": model, "lm_head": kernel(D, V)}


def mistral():
    return llama(F=14336, kv=1024)


def gemma():
    return llama(D=2048, F=16384, V=256000, kv=256, tied=True)


def mixture(D=4096, F=14336, V=32000, kv=1024, experts=8):
    """Mixtral's sizes, with the experts stacked as MaxText has them."""
    tree = llama(D, F, V, kv)
    moe = {
        "gate": kernel(D, experts),
        "wi_0": array(experts, D, F),
        "wi_1": array(experts, D, F),
        "wo": array(experts, F, D),
    }
    layer = tree["model"]["layers"]["0"]
    layer = {name: part for name, part in layer.items() if name != "mlp"} | {"moe": moe}
    return tree | {"model": tree["model"] | {"layers": layers(layer)}}


def gpt_j(D=4096, F=16384, V=50400):
    layer = {
        "ln_1": layer_norm(D),
        "attn": {name: kernel(D, D) for name in ("q_proj", "k_proj", "v_proj", "out_proj")},
        "mlp": {"fc_in": dense(D, F), "fc_out": dense(F, D)},
    }
    return {
        "transformer": {"wte": table(V, D), "h": layers(layer), "ln_f": layer_norm(D)},
        "lm_head": dense(D, V),
    }


def gpt_neo(D=2048, F=8192, V=50257):
    attention = {name: kernel(D, D) for name in ("q_proj", "k_proj", "v_proj")} | {"out_proj": dense(D, D)}
    layer = {
        "ln_1": layer_norm(D),
        "attn": {"attention": attention},
        "ln_2": layer_norm(D),
        "mlp": {"c_fc": dense(D, F), "c_proj": dense(F, D)},
    }
    return {
        "transformer": {
            "wte": table(V, D),
            "wpe": table(2048, D),
            "h": layers(layer),
            "ln_f": layer_norm(D),
        }
    }


def lstm(D=1024, V=32768):
    layer = {"input": kernel(D, 4 * D), "hidden": dense(D, 4 * D)}
    return {"embed": table(V, D), "layers": layers(layer), "head": dense(D, V)}


def gpt2(D=768, F=3072, V=50257):
    """Flax's own stores these kernels as [out, in]; here they lie as in GPT-2's checkpoints, [in, out]."""
    layer = {
        "ln_1": layer_norm(D),
        "attn": {"c_attn": dense(D, 3 * D), "c_proj": dense(D, D)},
        "ln_2": layer_norm(D),
        "mlp": {"c_fc": dense(D, F), "c_proj": dense(F, D)},
    }
    return {
        "transformer": {
            "wte": table(V, D),
            "wpe": table(1024, D),
            "h": layers(layer),
            "ln_f": layer_norm(D),
        }
    }


def opt(D=768, F=3072, V=50272):
    return {
        "model": {
            "decoder": {
                "embed_tokens": table(V, D),
                "embed_positions": table(2050, D),
                "layers": layers(post_norm_layer(D, F)),
                "final_layer_norm": layer_norm(D),
            }
        }
    }
