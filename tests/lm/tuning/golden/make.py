"""Adapters of tiny models as PEFT saves them, and what PyTorch makes of some tokens with them.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install torch==2.13.0 transformers==5.23.0 peft==0.21.2
    /tmp/peers/bin/python tests/lm/tuning/golden/make.py

The models are those of tests/lm/models/golden, in float32. Each folder holds what `save_pretrained` of an
adapter with random weights wrote, and `expected.safetensors`: the logits float32[B, T, V] of the model with
the adapter, for the tokens that tests/lm/models/golden has.

    /tmp/peers/bin/python tests/lm/tuning/golden/make.py check FOLDER

compares adapters that Meshwright wrote, each with its `expected.safetensors`, with what PEFT makes of them.
"""

import json
import shutil
import sys
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models" / "golden"
ATTENTION = ["q_proj", "v_proj", "down_proj"]
ADAPTERS = {
    "llama": {"target_modules": ATTENTION, "lora_alpha": 6},
    "llama3": {"target_modules": ["q_proj", "k_proj"], "use_dora": True},
    "mistral": {"target_modules": ["o_proj", "up_proj"], "use_rslora": True},
    "qwen2": {"target_modules": "all-linear"},
    "qwen3": {
        "target_modules": ATTENTION,
        "rank_pattern": {"down_proj": 3},
        "alpha_pattern": {"layers.1.self_attn.q_proj": 5},
    },
    "gemma": {"target_modules": ["gate_proj", "v_proj"], "use_dora": True, "use_rslora": True},
    "gemma2": {"target_modules": ["o_proj", "q_proj"]},
    "gemma3": {"target_modules": ["k_proj", "down_proj"]},
    "gpt2": {"target_modules": ["c_attn", "attn.c_proj", "c_fc"], "fan_in_fan_out": True},
    "t5": {"target_modules": ["q", "v", "wo"]},
    "t5v1_1": {"target_modules": ["k", "wi_0"], "use_dora": True},
}


def model_of(name):
    kind = transformers.AutoModelForSeq2SeqLM if name.startswith("t5") else transformers.AutoModelForCausalLM
    return kind.from_pretrained(MODELS / name, dtype=torch.float32, attn_implementation="eager").eval()


def logits_of(model, name):
    inputs = load_file(MODELS / name / "expected.safetensors")
    with torch.no_grad():
        return model(**{key: x for key, x in inputs.items() if key != "logits"}).logits.contiguous()


def make():
    for name, options in ADAPTERS.items():
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        task = "SEQ_2_SEQ_LM" if name.startswith("t5") else "CAUSAL_LM"
        config = peft.LoraConfig(r=2, **{"lora_alpha": 4, "task_type": task} | options)
        model = peft.get_peft_model(model_of(name), config).eval()
        torch.manual_seed(1)
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                parameter.data = (
                    parameter.data.abs() + 0.1 if "magnitude" in key else torch.randn_like(parameter) / 4
                )
        model.save_pretrained(folder)
        (folder / "README.md").unlink()
        said = json.loads((folder / "adapter_config.json").read_text())
        said["base_model_name_or_path"] = f"tests/lm/models/golden/{name}"
        if not isinstance(said["target_modules"], str):
            said["target_modules"].sort()
        (folder / "adapter_config.json").write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")
        save_file({"logits": logits_of(model, name)}, folder / "expected.safetensors")


def check(place):
    for folder in sorted(Path(place).iterdir()):
        model = peft.PeftModel.from_pretrained(model_of(folder.name), folder).eval()
        wanted = load_file(folder / "expected.safetensors")["logits"]
        print(folder.name, "differs by at most", float((logits_of(model, folder.name) - wanted).abs().max()))


if __name__ == "__main__":
    check(sys.argv[2]) if sys.argv[1:] else make()
