"""Tuning with LoRA: `meshwright tune` beside TRL and PEFT on PyTorch, on this machine's CPU, as ratios.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install torch==2.13.0 transformers==5.24.0 trl peft
    .venv/bin/python benchmarks/peers/tuning.py --peers /tmp/peers/bin/python

Both tune the same folder on the same rows, all of one length, with the same rank on the same matrices, and
take turns. Tokens are told per second of CPU, over all threads, in the steps after the first few, because
that is about the same on a machine that others use. So PyTorch's threads sleep while they wait for each
other; by default they spin, which takes CPU time for nothing. Memory is the largest resident set of the
process, start and compilation included: the compile cache is empty each time. Ours computes in bfloat16, as
on accelerators, and TRL in float32. Without `--peers`, ours is measured alone.
"""

import argparse
import dataclasses
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LENGTH, BATCH, STEPS, FIRST, EVERY = 128, 8, 24, 4, 4
DESCRIBED = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make(place):
    """Write a folder of a random model, and rows of text that have as many tokens as a row may have."""
    import jax
    import jax.numpy as jnp

    import meshwright as mw
    from meshwright.lm._models import decoder, hugging_face

    words = [f"word{number}" for number in range(400)]
    texts = [
        " ".join(words[(7 * row + 3 * each) % 400] for each in range(300)) for row in range(BATCH * STEPS + 8)
    ]
    mw.data.train_tokenizer(texts[:50], place / "model", vocab_size=2000)
    params = decoder.init(hugging_face.config(DESCRIBED), jax.random.key(0), dtype=jnp.float32)
    hugging_face.export_model(params, place / "model", DESCRIBED)
    (place / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def ours(place):
    import meshwright as mw

    times = []
    tuning = mw.lm.tuning(
        str(place / "model"), str(place / "rows.jsonl"), str(place / "run"),
        lora=16, epochs=1, batch_size=BATCH, length=LENGTH, held_out=0.02, mesh="data=-1",
    )  # fmt: skip
    clock = mw.Logging(
        every=EVERY, trackers=(lambda step, values: times.append((step, time.process_time())),)
    )
    outcome = mw.run(dataclasses.replace(tuning, logging=clock))
    times = [seconds for step, seconds in times if step >= FIRST]
    return {"tokens_per_cpu_second": rate(times, EVERY), "peak_mib": peak_mib(), "steps": outcome.step}


def rate(times, steps):
    """Return the tokens per second of CPU, given the seconds at the ends of so many steps each."""
    return steps * BATCH * LENGTH / statistics.median(b - a for a, b in itertools.pairwise(times))


def trl(place):
    import peft
    import transformers
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    class Clock(transformers.TrainerCallback):
        times = []  # noqa: RUF012

        def on_step_end(self, *_, **__):
            self.times.append(time.process_time())

    rows = [json.loads(line) for line in (place / "rows.jsonl").read_text().splitlines()]
    how = SFTConfig(
        output_dir=str(place / "trl"), max_length=LENGTH, per_device_train_batch_size=BATCH, max_steps=STEPS,
        learning_rate=2e-4, use_cpu=True, bf16=False, report_to="none", save_strategy="no",
        gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = SFTTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(place / "model"),
        processing_class=transformers.AutoTokenizer.from_pretrained(place / "model"),
        args=how,
        train_dataset=Dataset.from_list(rows),
        peft_config=peft.LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM"),
        callbacks=[Clock()],
    )
    trainer.train()
    return {
        "tokens_per_cpu_second": rate(Clock.times[FIRST:], 1),
        "peak_mib": peak_mib(),
        "steps": len(Clock.times),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", help="the Python of an environment with TRL")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    parser.add_argument("--side", choices=("ours", "trl", "make"), help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print("RESULT", json.dumps({"ours": ours, "trl": trl, "make": make}[options.side](options.place)))
        return
    pythons = {"ours": sys.executable, "trl": options.peers}
    if not options.peers:
        del pythons["trl"]
        print("TRL is left out: --peers names the Python of an environment with trl and peft.")
    with tempfile.TemporaryDirectory() as place:
        found = {side: [] for side in pythons}
        run(sys.executable, "make", place)
        for _ in range(1 if options.tiny else options.repeats):
            for folder in ("run", "cache"):
                shutil.rmtree(Path(place, folder), ignore_errors=True)
            for side, python in pythons.items():
                found[side].append(run(python, side, place))
            print({side: results[-1] for side, results in found.items()}, flush=True)
    if not options.peers:
        return
    for name in ("tokens_per_cpu_second", "peak_mib"):
        pairs = [(mine[name], theirs[name]) for mine, theirs in zip(*found.values(), strict=True)]
        told = ", ".join(f"{mine:,.0f} / {theirs:,.0f}" for mine, theirs in pairs)
        ratios = [mine / theirs for mine, theirs in pairs]
        print(f"{name}: ours / TRL {told}; median ratio {statistics.median(ratios):.2f}")


def run(python, side, place):
    command = [python, __file__, "--side", side, "--place", place]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    environment["XDG_CACHE_HOME"] = f"{place}/cache"
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


if __name__ == "__main__":
    main()
