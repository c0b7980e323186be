"""The specs that well-known models must get, from shapes alone and traced."""

import functools
import re

import pytest
from benchmarks.models.cases import CASES
from benchmarks.models.trees import ZOO
from jax.sharding import PartitionSpec as P

import meshwright as mw


def separate(heads, *, out="out_proj"):
    return {
        "(q|k|v)_proj/kernel": (1, heads),
        "(q|k|v)_proj/bias": (0, heads),
        f"{out}/kernel": (0, heads),
    }


def feed_forward(up, down, features):
    return {f"({up})/kernel": (1, features), f"({up})/bias": (0, features), f"({down})/kernel": (0, features)}


def bert_like(heads):
    return {
        "(query|key|value)/kernel": (1, heads),
        "(query|key|value)/bias": (0, heads),
        "attention/output/dense/kernel": (0, heads),
        **feed_forward("intermediate/dense", r"\d/output/dense", 3072),
    }


GATED = functools.partial(feed_forward, "gate_proj|up_proj", "down_proj")

# By the end of the name: the dimension that is split, and the number that must divide for it.
# Everything else is whole. Attention, feed-forward and even vocabularies are split as redco splits
# LLaMA, Mistral, Gemma, GPT-J, GPT-Neo, OPT, T5, BART, CLIP and the CNN, but that heads stay together.
LAWS = {
    "llama": {
        **separate(32, out="o_proj"),
        **GATED(11008),
        "embed_tokens/embedding": (0, 32000),
        "lm_head/kernel": (1, 32000),
    },
    "mistral": {
        "q_proj/kernel": (1, 32),
        "(k|v)_proj/kernel": (1, 8),
        "o_proj/kernel": (0, 32),
        **GATED(14336),
        "embed_tokens/embedding": (0, 32000),
        "lm_head/kernel": (1, 32000),
    },
    "gemma": {
        "q_proj/kernel": (1, 8),
        "(k|v)_proj/kernel": (1, 1),
        "o_proj/kernel": (0, 8),
        **GATED(16384),
        "embed_tokens/embedding": (0, 256000),
    },
    "gpt_j": {
        **separate(16),
        **feed_forward("fc_in", "fc_out", 16384),
        "wte/embedding": (0, 50400),
        "lm_head/kernel": (1, 50400),
        "lm_head/bias": (0, 50400),
    },
    "gpt_neo": {
        **separate(16),
        **feed_forward("c_fc", "mlp/c_proj", 8192),
        "wte/embedding": (1, 2048),  # 50257 tokens do not divide
    },
    "opt": {
        **separate(12),
        **feed_forward("fc1", "fc2", 3072),
        "embed_tokens/embedding": (0, 50272),
    },
    "t5": {
        "(q|k|v)/kernel": (1, 8),
        "o/kernel": (0, 8),
        "relative_attention_bias/embedding": (1, 8),
        **feed_forward("wi", "wo", 2048),
        "shared/embedding": (0, 32128),
    },
    "t5_v1_1": {
        "(q|k|v)/kernel": (1, 6),
        "o/kernel": (0, 6),
        "relative_attention_bias/embedding": (1, 6),
        **feed_forward("wi_0|wi_1", "wo", 1024),
        "shared/embedding": (0, 32128),
        "lm_head/kernel": (1, 32128),
    },
    "bart": {
        **separate(12),
        **feed_forward("fc1", "fc2", 3072),
        "shared/embedding": (0, 50265),
        "final_logits_bias": (1, 50265),
    },
    "clip": {
        **{f"text_model/.*/{name}": law for name, law in separate(8).items()},
        **{f"vision_model/.*/{name}": law for name, law in separate(12).items()},
        **feed_forward("fc1", "fc2", 2048),
        "token_embedding/embedding": (0, 49408),
    },
    "mnist_cnn": {
        "Conv_0/kernel": (3, 32),
        "Conv_0/bias": (0, 32),
        "Conv_1/kernel": (2, 32),
        **feed_forward("Dense_0", "Dense_1", 256),
    },
    "gpt2": {
        "attn/c_attn/kernel": (1, 12),
        "attn/c_attn/bias": (0, 12),
        "attn/c_proj/kernel": (0, 12),
        **feed_forward("c_fc", "mlp/c_proj", 3072),
        "wte/embedding": (0, 50257),
    },
    "bert": {
        **bert_like(12),
        "word_embeddings/embedding": (0, 30522),
        "predictions/bias": (0, 30522),
    },
    "roberta": {
        **bert_like(12),
        "word_embeddings/embedding": (0, 50265),
        "lm_head/bias": (0, 50265),
    },
    "vit": {**bert_like(12), "classifier/kernel": (1, 1000), "classifier/bias": (0, 1000)},
    "whisper": {
        **separate(12),
        **feed_forward("fc1", "fc2", 3072),
        "embed_tokens/embedding": (0, 51865),
    },
    "multi_head_attention": {
        "(query|key|value)/kernel": (1, 12),
        "(query|key|value)/bias": (0, 12),
        "out/kernel": (0, 12),
    },
    "mixture": {
        "q_proj/kernel": (1, 32),
        "(k|v)_proj/kernel": (1, 8),
        "o_proj/kernel": (0, 32),
        "wi_(0|1)": (2, 14336),
        "wo": (1, 14336),
        "embed_tokens/embedding": (0, 32000),
        "lm_head/kernel": (1, 32000),
    },
}


def lawful(laws, name, shards):
    """The spec that the laws ask for."""
    law = next((law for end, law in laws.items() if re.fullmatch(f"(?:.*/)?(?:{end})", name)), None)
    if law is None or law[1] % shards:
        return P()
    return P(*[None] * law[0], "tensor")


def broken(laws, params, rule, shards):
    """What is not as the laws ask: {name: (shape, spec)}."""
    layout = mw.Layout(mw.make_mesh(f"data=-1,tensor={shards}"), (rule,))
    placed = mw.base._internal.named_leaves(layout.shardings(params))
    shapes = {name: x.shape for name, x in mw.base._internal.named_leaves(params).items()}
    return {
        name: (shapes[name], sharding.spec)
        for name, sharding in placed.items()
        if sharding.spec != lawful(laws, name, shards)
    }


SHARDS = (2, 4, 8)


@pytest.mark.parametrize("model", ZOO)
def test_shapes_and_names_tell_the_specs_of_a_known_model(model):
    params = ZOO[model]()
    rule = mw.infer_rules(params)
    assert [broken(LAWS[model], params, rule, shards) for shards in SHARDS] == [{}, {}, {}]
    mesh, leaves = mw.make_mesh("tensor=8"), mw.base._internal.named_leaves(params)
    large = {name: x for name, x in leaves.items() if x.size > 2**16}
    assert all(rule(name, x, mesh) or rule.why(name, x, mesh) for name, x in large.items())


TRACED_LAWS = {
    **LAWS,
    "llama": {**LAWS["mistral"], "embed_tokens/embedding": (0, 128256), "lm_head/kernel": (1, 128256)},
    "t5": {**LAWS["t5_v1_1"], **{end: (d, 12) for end, (d, n) in LAWS["t5_v1_1"].items() if n == 6}},
    # A trace sees that the pooled layer and its labels are a pair of their own.
    "bert": {
        **LAWS["bert"],
        "pooler/dense/kernel": (1, 768),
        "pooler/dense/bias": (0, 768),
        "seq_relationship/kernel": (0, 768),
    },
}


@pytest.mark.parametrize("model", sorted(CASES.keys() - {"lstm"}))  # its specs depend on the other axes
def test_a_trace_tells_the_specs_of_a_known_model(model):
    case = CASES[model]()
    rule = mw.infer_rules(case.params, case.loss, case.batch)
    assert [broken(TRACED_LAWS[model], case.params, rule, shards) for shards in SHARDS] == [{}, {}, {}]
