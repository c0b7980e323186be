"""What `transformers` generates with the tiny models of `tests/lm/models/golden`.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install torch==2.13.0 transformers==5.23.0
    /tmp/peers/bin/python tests/lm/generation/golden/make.py

For each model a file of JSON: `prompts`, 50 of them; `greedy`, the new tokens of each; `beams`, those of the
first ten by beam search; `repeated`, those of the first ten with a repetition penalty. `kept.json` has
logits, and which of them each bound keeps.
"""

import json
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models/golden"
NAMES = ("llama", "llama3", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gpt2", "t5", "t5v1_1")
NEW, END = 16, 2
WARPERS = {
    "top_k=5": transformers.TopKLogitsWarper(5),
    "top_p=0.8": transformers.TopPLogitsWarper(0.8),
    "min_p=0.1": transformers.MinPLogitsWarper(0.1),
}


def prompts():
    rng = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, 15, (50,), generator=rng).tolist()
    return [torch.randint(3, 48, (length,), generator=rng).tolist() for length in lengths]


def loaded(name):
    is_t5 = name.startswith("t5")
    kind = transformers.AutoModelForSeq2SeqLM if is_t5 else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(MODELS / name, dtype=torch.float32, attn_implementation="eager").eval()
    if name == "t5v1_1":  # version 5 ties it
        from safetensors.torch import load_file

        model.lm_head.weight = torch.nn.Parameter(
            load_file(MODELS / name / "model.safetensors")["lm_head.weight"].float()
        )
    return model


def new_tokens(model, prompt, **options):
    settings = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": END, "pad_token_id": 0, **options}
    given = torch.tensor([prompt])
    out = model.generate(given, attention_mask=torch.ones_like(given), **settings)[0].tolist()
    new = out[1:] if model.config.is_encoder_decoder else out[len(prompt) :]
    return new[: new.index(END) + 1] if END in new else new


def kept():
    logits = torch.randn((6, 20), generator=torch.Generator().manual_seed(0)) * 2
    left = {name: warper(None, logits.clone()).isfinite().tolist() for name, warper in WARPERS.items()}
    return {"logits": logits.tolist(), "kept": left}


def main():
    rows = prompts()
    for name in NAMES:
        model = loaded(name)
        with torch.no_grad():
            found = {
                "prompts": rows,
                "greedy": [new_tokens(model, row) for row in rows],
                "beams": [new_tokens(model, row, num_beams=3) for row in rows[:10]],
                "repeated": [new_tokens(model, row, repetition_penalty=1.5) for row in rows[:10]],
            }
        (HERE / f"{name}.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")
    (HERE / "kept.json").write_text(json.dumps(kept()) + "\n")


if __name__ == "__main__":
    main()
