"""Temporary memory of one device in a step over four stages, by schedule and number of microbatches.

    python benchmarks/pipeline.py

A stack of 32 layers, of 128 features and 512 hidden ones, is compiled for four virtual CPU devices, with
microbatches of 8 rows of 128 tokens. Nothing runs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

STAGES, LAYERS, WIDTH, LENGTH, ROWS = 4, 32, 128, 128, 8
NUMBERS = (8, 16, 32)


def init(key: jax.Array) -> dict:
    up = jax.random.normal(key, (LAYERS, WIDTH, 4 * WIDTH)) / 16
    table = jax.random.normal(key, (256, WIDTH))
    return {"table": table, "layers": {"up": up, "down": up.swapaxes(1, 2) / 2}}


def block(w: dict, x: jax.Array) -> jax.Array:
    return x + jnp.tanh(x @ w["up"]) @ w["down"]


def loss_of(policy: str):
    kept = mw.train.remat(block, policy)

    def loss(params, batch):
        x = mw.layers(kept, params["layers"], params["table"][batch["tokens"]])
        logits = x @ params["table"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"]).mean()

    return loss


def temporary_mib(policy: str, schedule: str, microbatches: int) -> float:
    layout = mw.Layout(mw.make_mesh({"pipeline": STAGES}), (mw.sharding.stages(), mw.match(".*")))
    optimizer = optax.sgd(1.0)
    state = mw.train.abstract_state(init, optimizer, layout)
    options = {"microbatches": microbatches, "pipeline_schedule": schedule}
    step = mw.make_step(loss_of(policy), optimizer, layout, **options)
    batch = {"tokens": jax.ShapeDtypeStruct((ROWS * microbatches, LENGTH), np.int32)}
    return step.compile(state, batch).memory_analysis().temp_size_in_bytes / 2**20


def main() -> None:
    print(f"| layers keep | schedule | {' | '.join(f'{n} microbatches' for n in NUMBERS)} |")
    print("|---" * (2 + len(NUMBERS)) + "|")
    for policy in ("nothing", "everything"):
        for schedule in ("gpipe", "1f1b"):
            found = (f"{temporary_mib(policy, schedule, n):.1f} MiB" for n in NUMBERS)
            print(f"| {policy} | `{schedule}` | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", STAGES)
    main()
