"""Tiny T5s of random weights with the names and shapes of T5X, and what PyTorch makes of some tokens.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install torch==2.13.0 transformers==5.24.0
    /tmp/peers/bin/python tests/lm/models/golden/make_t5x.py

Each folder holds `target.safetensors`, the parameters as T5X calls and shapes them, and
`expected.safetensors`: tokens int64[B, T] and the logits float32[B, T, V] of the model of `transformers` into
which they were put, one by one, as the converters of `transformers` 4 did. `scanned` has the parameters of
T5X's `scalable_t5`.

Source of names and shapes: `examples/t5` and `examples/scalable_t5` of github.com/google-research/t5x.
"""

import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).parent / "t5x"
V, D, N, H, F, LAYERS, BUCKETS = 48, 24, 4, 8, 40, 2, 32
KERNELS = {"q": "query", "k": "key", "v": "value", "o": "out"}


class Drawn(dict):
    """Parameters of T5X, drawn when they are first asked for."""

    def __init__(self):
        self.random = torch.Generator().manual_seed(0)

    def draw(self, name, *shape):
        if name not in self:
            self[name] = torch.randn(shape, generator=self.random) * 0.3
        return self[name]


def per_layer(drawn, scanned, stack, layer, name, *shape):
    """Return the parameter of one layer; a scanned one has the layers along its second dimension."""
    if not scanned:
        return drawn.draw(f"target/{stack}/layers_{layer}/{name}", *shape)
    return drawn.draw(f"target/{stack}/{stack}/{name}", shape[0], LAYERS, *shape[1:])[:, layer]


def fill(drawn, model, *, scanned, gated, tied):
    """Put parameters of T5X into a model of `transformers`."""
    put = lambda to, value: to.weight.data.copy_(value)
    put(model.shared, drawn.draw("target/token_embedder/embedding", V, D))
    if not tied:
        put(model.lm_head, drawn.draw("target/decoder/logits_dense/kernel", D, V).T)
    for stack, module in (("encoder", model.encoder), ("decoder", model.decoder)):
        put(module.final_layer_norm, drawn.draw(f"target/{stack}/{stack}_norm/scale", D))
        if not scanned:
            table = drawn.draw(f"target/{stack}/relpos_bias/rel_embedding", N, BUCKETS)
            put(module.block[0].layer[0].SelfAttention.relative_attention_bias, table.T)
        for number, block in enumerate(module.block):
            of = lambda name, *shape, n=number, s=stack: per_layer(drawn, scanned, s, n, name, *shape)
            if scanned:
                table = of("relpos_bias/rel_embedding", N, BUCKETS)
                put(block.layer[0].SelfAttention.relative_attention_bias, table.T)
            parts = [("attention", "pre_attention_layer_norm", "SelfAttention")]
            if stack == "decoder":
                parts = [
                    ("self_attention", "pre_self_attention_layer_norm", "SelfAttention"),
                    ("encoder_decoder_attention", "pre_cross_attention_layer_norm", "EncDecAttention"),
                ]
            for (attention, norm, called), layer in zip(parts, block.layer, strict=False):
                put(layer.layer_norm, of(f"{norm}/scale", D))
                for letter, kernel in KERNELS.items():
                    apart = (N, H, D) if letter == "o" else (D, N, H)
                    joined = (N * H, D) if letter == "o" else (D, N * H)
                    value = of(f"{attention}/{kernel}/kernel", *(apart if scanned else joined))
                    put(getattr(getattr(layer, called), letter), value.reshape(joined).T)
            last = block.layer[-1]
            put(last.layer_norm, of("pre_mlp_layer_norm/scale", D))
            for name in ("wi_0", "wi_1") if gated else ("wi",):
                put(getattr(last.DenseReluDense, name), of(f"mlp/{name}/kernel", D, F).T)
            put(last.DenseReluDense.wo, of("mlp/wo/kernel", F, D).T)


def tokens(seed, length):
    return torch.randint(3, V, (2, length), generator=torch.Generator().manual_seed(seed))


def write(name, family, **form):
    sizes = {"vocab_size": V, "d_model": D, "d_kv": H, "num_heads": N, "d_ff": F, "num_layers": LAYERS}
    kind = "gated-gelu" if form["gated"] else "relu"
    more = {"feed_forward_proj": kind, "tie_word_embeddings": form["tied"], "decoder_start_token_id": 0}
    config = getattr(transformers, f"{family}Config")(**sizes, **more, dropout_rate=0.0)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    if not form["tied"]:  # as published; version 5 would tie it
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    drawn = Drawn()
    fill(drawn, model, **form)
    inputs = {"input_ids": tokens(1, 14), "decoder_input_ids": tokens(2, 9)}
    with torch.no_grad():
        logits = model(**inputs).logits
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file({key: value.contiguous() for key, value in drawn.items()}, folder / "target.safetensors")
    save_file({**inputs, "logits": logits.contiguous()}, folder / "expected.safetensors")


if __name__ == "__main__":
    write("t5_1_0", "T5", scanned=False, gated=False, tied=True)
    write("t5_1_1", "T5", scanned=False, gated=True, tied=False)
    write("scanned", "UMT5", scanned=True, gated=True, tied=False)
