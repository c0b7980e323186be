"""Temporary memory of one device in a step over four stages, by schedule and number of microbatches.

    python benchmarks/pipeline.py

A stack of 32 layers, of 128 features and 512 hidden ones, is compiled for four virtual CPU devices, with
microbatches of 8 rows of 128 tokens. Nothing runs. The bar: 1F1B takes as much with more microbatches, and
less than GPipe.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

STAGES, LAYERS, WIDTH, LENGTH, ROWS = 4, 32, 128, 128, 8
NUMBERS = (8, 16, 32)


def init(num_layers: int, key: jax.Array) -> dict:
    up = jax.random.normal(key, (num_layers, WIDTH, 4 * WIDTH)) / 16
    table = jax.random.normal(key, (256, WIDTH))
    return {"table": table, "layers": {"up": up, "down": up.swapaxes(1, 2) / 2}}


def block(w: dict, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(x @ w["up"]) @ w["down"]


def loss_of(policy: str):
    kept = mw.training.remat(block, policy)

    def loss(params, batch):
        x = mw.nn.layers(kept, params["layers"], params["table"][batch["tokens"]])
        logits = x @ params["table"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"]).mean()

    return loss


def temporary_mib(num_layers: int, policy: str, schedule: str, microbatches: int) -> float:
    layout = mw.Layout(mw.make_mesh({"pipeline": STAGES}), (mw.parallel.stages(), mw.parallel.match(".*")))
    optimizer = optax.sgd(1.0)
    state = mw.training.abstract_state(functools.partial(init, num_layers), optimizer, layout)
    options = {"microbatches": microbatches, "pipeline_schedule": schedule}
    step = mw.make_step(loss_of(policy), optimizer, layout, **options)
    batch = {"tokens": jax.ShapeDtypeStruct((ROWS * microbatches, LENGTH), np.int32)}
    return step.compile(state, batch).memory_analysis().temp_size_in_bytes / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    is_tiny = parser.parse_args().tiny
    num_layers, numbers = (STAGES, (8,)) if is_tiny else (LAYERS, NUMBERS)
    jax.config.update("jax_num_cpu_devices", STAGES)
    print(f"| layers keep | schedule | {' | '.join(f'{n} microbatches' for n in numbers)} |")
    print("|---" * (2 + len(numbers)) + "|")
    for policy in ("nothing",) if is_tiny else ("nothing", "everything"):
        memory = {}
        for schedule in ("gpipe", "1f1b"):
            memory[schedule] = [temporary_mib(num_layers, policy, schedule, n) for n in numbers]
            cells = (f"{mib:.1f} MiB" for mib in memory[schedule])
            print(f"| {policy} | `{schedule}` | {' | '.join(cells)} |", flush=True)
        of_1f1b, of_gpipe = memory["1f1b"], memory["gpipe"]
        if of_1f1b[-1] > min(1.01 * of_1f1b[0], of_gpipe[-1]):
            raise SystemExit("1F1B takes more memory than GPipe, or more with more microbatches")


if __name__ == "__main__":
    main()
