"""Tiny models of random weights as `transformers` saves them, and what PyTorch makes of some tokens.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install torch==2.13.0 transformers==5.23.0
    /tmp/peers/bin/python tests/lm/models/golden/make.py [DECODER ...]

Mixtral and Qwen3-MoE were made by transformers 5.24.0.

Each folder holds what `save_pretrained` wrote, in bfloat16, and `expected.safetensors`: tokens int64[B, T]
and the logits float32[B, T, V] that the same weights give in float32; of T5, the decoder's tokens, too.
"""

import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).parent
SIZES = {
    "vocab_size": 48,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LAYERS = ["sliding_attention", "full_attention"]
DECODERS = {
    "llama": ("Llama", {"rms_norm_eps": 1e-5}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True, "head_dim": 16}),
    "mistral": ("Mistral", {"sliding_window": 5}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "intermediate_size": 16}),
    "qwen3_moe": ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}),
    "gemma": ("Gemma", {}),
    "gemma2": ("Gemma2", {"sliding_window": 5, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 0.5}),
    "gemma3": ("Gemma3", {"sliding_window": 5, "query_pre_attn_scalar": 24, "layer_types": LAYERS}),
}


def randomised(model):
    """Return `model` with all weights random, norms and biases too, so that none goes unnoticed."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn_like(parameter) * (0.5 if parameter.ndim == 1 else 0.3)
            parameter.copy_(drawn.bfloat16())
    return model.eval()


def write(name, model, inputs, **options):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    with torch.no_grad():
        logits = model(**inputs).logits
    model.bfloat16().save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_file({**inputs, "logits": logits.contiguous()}, folder / "expected.safetensors")


def tokens(seed=1, length=14):
    return torch.randint(3, 48, (2, length), generator=torch.Generator().manual_seed(seed))


def main():
    for name, (family, options) in DECODERS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        config_of = getattr(transformers, f"{family}TextConfig" if name == "gemma3" else f"{family}Config")
        config = config_of(**SIZES | options, attn_implementation="eager")
        model = randomised(getattr(transformers, f"{family}ForCausalLM")(config))
        write(name, model, {"input_ids": tokens()}, max_shard_size="9KB" if name == "llama" else "1GB")
    if sys.argv[1:]:
        return
    sizes = {"vocab_size": 48, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32}
    gpt2 = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
    write("gpt2", randomised(transformers.GPT2LMHeadModel(gpt2)), {"input_ids": tokens()})
    shared = {
        "vocab_size": 48,
        "d_model": 24,
        "d_kv": 8,
        "num_heads": 4,
        "num_layers": 2,
        "num_decoder_layers": 2,
    }
    for name, rest in {
        "t5": {"d_ff": 40, "feed_forward_proj": "relu", "tie_word_embeddings": True},
        "t5v1_1": {"d_ff": 40, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "umt5": {"d_ff": 40, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    }.items():
        family = "UMT5" if name == "umt5" else "T5"
        config_of = getattr(transformers, f"{family}Config")
        t5 = config_of(**shared, **rest, decoder_start_token_id=0, dropout_rate=0.0)
        model = getattr(transformers, f"{family}ForConditionalGeneration")(t5)
        if name != "t5":  # as published; version 5 would tie it
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        write(name, randomised(model), {"input_ids": tokens(), "decoder_input_ids": tokens(2, 9)})


if __name__ == "__main__":
    main()
