"""The gradient of a mixture of experts on one CPU device, by turns, beside `jax.lax.ragged_dot`.

    python benchmarks/experts.py

XLA has a kernel for `jax.lax.ragged_dot` on TPUs; elsewhere it multiplies each row with all experts.
`mw.nn.moe` multiplies blocks of rows of one expert there. With a capacity all experts multiply the same
number of rows. Without one, the gradients are those of `jax.lax.ragged_dot`.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import meshwright as mw

WIDTH, HIDDEN, TOP_K = 256, 512, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7, help="the number of turns (default: %(default)s)")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    tokens, turns, numbers = (64, 1, (8,)) if options.tiny else (1024, options.turns, (8, 32))
    jax.config.update("jax_platforms", "cpu")
    print(
        f"{tokens} tokens of {WIDTH}, {TOP_K} experts each, hidden features {HIDDEN}; {turns} turns, medians"
    )
    for num_experts in numbers:
        arguments = arrays(num_experts, tokens)
        steps = {
            "ragged_dot": gradient(by_ragged_dot),
            "mw.nn.moe": gradient(by_moe),
            "mw.nn.moe, capacity 1.25": gradient(partial(by_moe, capacity=1.25)),
            "mw.nn.moe, capacity 2.0": gradient(partial(by_moe, capacity=2.0)),
        }
        gradients = {name: jax.block_until_ready(step(*arguments)) for name, step in steps.items()}
        same = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-6)
        jax.tree.map(same, gradients["mw.nn.moe"], gradients["ragged_dot"])
        taken = {name: [] for name in steps}
        for _ in range(turns):
            for name, step in steps.items():
                begin = time.perf_counter()
                jax.block_until_ready(step(*arguments))
                taken[name].append(time.perf_counter() - begin)
        for name, seconds in taken.items():
            ratio = statistics.median(a / b for a, b in zip(seconds, taken["ragged_dot"], strict=True))
            print(f"{num_experts} experts, {name}: {statistics.median(seconds):.3f} s, {ratio:.2f} x")


def arrays(num_experts: int, tokens: int) -> tuple:
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (tokens, WIDTH))
    experts = {
        "up": jax.random.normal(keys[1], (num_experts, WIDTH, HIDDEN)) / WIDTH**0.5,
        "down": jax.random.normal(keys[2], (num_experts, HIDDEN, WIDTH)) / HIDDEN**0.5,
    }
    return experts, x, jax.random.normal(keys[3], (WIDTH, num_experts)) / WIDTH**0.5


def block(weights: dict, rows: jax.Array, dot: Callable[..., jax.Array]) -> jax.Array:
    return dot(jax.nn.relu(dot(rows, weights["up"])), weights["down"])


def by_moe(experts: dict, x: jax.Array, logits: jax.Array, capacity: float | None = None) -> jax.Array:
    return mw.nn.moe(block, experts, x, logits, top_k=TOP_K, capacity=capacity)[0]


def by_ragged_dot(experts: dict, x: jax.Array, logits: jax.Array) -> jax.Array:
    weights, chosen = jax.lax.top_k(jax.nn.softmax(logits), TOP_K)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=logits.shape[-1])
    found = block(experts, x[order // TOP_K], lambda rows, w: jax.lax.ragged_dot(rows, w, sizes))
    of_choices = found[jnp.argsort(order)].reshape(*chosen.shape, -1)
    return (of_choices * (weights / weights.sum(-1, keepdims=True))[..., None]).sum(1)


def gradient(mixture: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    loss = lambda experts, x, router: jnp.square(mixture(experts, x, x @ router)).mean()  # noqa: E731
    return jax.jit(jax.grad(loss, (0, 2)))


if __name__ == "__main__":
    main()
