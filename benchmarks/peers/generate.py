"""Greedy tokens a second beside `transformers` on PyTorch, on this machine's CPU, as ratios.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install torch==2.13.0 transformers==5.24.0
    .venv/bin/python benchmarks/peers/generate.py --peer /tmp/peers/bin/python

Both read the same folder of a random Llama of 14 M parameters, in float32, continue the same prompts with
their caches, and take turns, each in a process that stays. The first turn of each case, in which we compile,
is not counted. Rows whose tokens are equal are told: at one in some thousand tokens of a random model, the
rounding of float32 decides between two. PyTorch's threads sleep while they wait for each other; by default
they spin, which takes CPU time for nothing. Without `--peer`, ours is measured alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DESCRIBED = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 8192,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}
PROMPT, NEW = 16, 240
ROWS = 1, 4, 16
CLOCKS = {"wall": time.perf_counter, "CPU": time.process_time}


def make(folder: Path) -> None:
    import jax
    import jax.numpy as jnp

    from meshwright.lm._models import decoder, hugging_face

    cfg = hugging_face.config(DESCRIBED)
    # Larger than for training, so that rounding decides no token.
    params = jax.tree.map(lambda x: 3 * x, decoder.init(cfg, jax.random.key(0), dtype=jnp.float32))
    hugging_face.export_model(params, folder, DESCRIBED)


def ours(folder: Path):
    import jax
    import jax.numpy as jnp
    import numpy as np

    import meshwright as mw
    from meshwright.lm._models import decoder, hugging_face

    cfg = hugging_face.config(folder)
    target = jax.eval_shape(lambda: decoder.init(cfg, jax.random.key(0), dtype=jnp.float32))
    params = mw.restore(hugging_face.open_model(folder), target)
    model, decoding = mw.lm.with_cache(cfg), mw.lm.Decoding(max_new_tokens=NEW)

    def generated(prompts: list[list[int]]) -> list[list[int]]:
        options = {"length": PROMPT + NEW, "slots": len(prompts)}
        found = mw.lm.generate(model, params, [np.array(each) for each in prompts], decoding, **options)
        return [row.tolist() for row in found]

    return generated


def theirs(folder: Path):
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def generated(prompts: list[list[int]]) -> list[list[int]]:
        tokens = torch.tensor(prompts)
        with torch.inference_mode():
            found = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                min_new_tokens=NEW,
                max_new_tokens=NEW,
                pad_token_id=0,
                eos_token_id=None,
            )
        return found[:, PROMPT:].tolist()

    return generated


def answer(generated) -> None:
    """Continue the prompts of each line of the standard input, and write the tokens and the seconds."""
    for line in sys.stdin:
        started = [clock() for clock in CLOCKS.values()]
        tokens = generated(json.loads(line))
        seconds = [clock() - start for clock, start in zip(CLOCKS.values(), started, strict=True)]
        print("RESULT", json.dumps({"tokens": tokens, "seconds": seconds}), flush=True)


class Side:
    """A process that generates when it is asked to."""

    def __init__(self, python: str, name: str, folder: str) -> None:
        environ = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu"}
        command = [python, __file__, "--side", name, "--folder", folder]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
        )

    def ask(self, prompts: list[list[int]]) -> dict:
        self._process.stdin.write(json.dumps(prompts) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        raise SystemExit("a side has ended")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def compare(rounds: int, sides: dict[str, Side], num_rows: int) -> None:
    prompts = [[(7 * row + 3 * at) % 8192 for at in range(PROMPT)] for row in range(num_rows)]
    found = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, side in sides.items():
            found[name].append(side.ask(prompts))
    for at, clock in enumerate(CLOCKS):
        rates = {
            name: [num_rows * NEW / result["seconds"][at] for result in results[1:]]
            for name, results in found.items()
        }
        medians = ", ".join(f"{name} {statistics.median(each):,.0f}" for name, each in rates.items())
        told = ""
        if len(rates) > 1:
            ratios = [mine / other for mine, other in zip(*rates.values(), strict=True)]
            told = f"; ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            pairs = zip(*(results[0]["tokens"] for results in found.values()), strict=True)
            told += f"; {sum(mine == other for mine, other in pairs)} rows equal"
        print(f"{num_rows:3} rows, tokens per second ({clock}): {medians}{told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer", help="the Python of an environment with transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    parser.add_argument("--side", choices=("ours", "transformers"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        answer({"ours": ours, "transformers": theirs}[options.side](options.folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        pythons = {"ours": sys.executable, "transformers": options.peer}
        if not options.peer:
            del pythons["transformers"]
            print("transformers is left out: --peer names the Python of an environment that has it.")
        sides = {name: Side(python, name, folder) for name, python in pythons.items()}
        for num_rows in ROWS[:1] if options.tiny else ROWS:
            compare(1 if options.tiny else options.rounds, sides, num_rows)
        for side in sides.values():
            side.close()


if __name__ == "__main__":
    main()
