"""The gradient of a mixture of experts on one CPU device: without a capacity, and with one.

    python benchmarks/experts.py

XLA has a kernel for `jax.lax.ragged_dot` on TPUs; elsewhere each row is multiplied with all experts. With a
capacity all experts multiply the same number of rows, in one batched product. The forms take turns.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp

import meshwright as mw

TOKENS, WIDTH, HIDDEN, TOP_K = 1024, 256, 512, 2
CAPACITIES = (None, 1.25, 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7, help="the number of turns (default: %(default)s)")
    turns = parser.parse_args().turns
    jax.config.update("jax_platforms", "cpu")
    print(
        f"{TOKENS} tokens of {WIDTH}, {TOP_K} experts each, hidden features {HIDDEN}; {turns} turns, medians"
    )
    for num_experts in (8, 32):
        arguments = arrays(num_experts)
        steps = {capacity: gradient(capacity) for capacity in CAPACITIES}
        for step in steps.values():
            jax.block_until_ready(step(*arguments))
        taken = {capacity: [] for capacity in CAPACITIES}
        for _ in range(turns):
            for capacity, step in steps.items():
                begin = time.perf_counter()
                jax.block_until_ready(step(*arguments))
                taken[capacity].append(time.perf_counter() - begin)
        for capacity in CAPACITIES[1:]:
            ratio = statistics.median(a / b for a, b in zip(taken[capacity], taken[None], strict=True))
            seconds = statistics.median(taken[capacity])
            print(f"{num_experts} experts, capacity {capacity}: {seconds:.3f} s, {ratio:.2f} x that without")


def arrays(num_experts: int) -> tuple:
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (TOKENS, WIDTH))
    experts = {
        "up": jax.random.normal(keys[1], (num_experts, WIDTH, HIDDEN)) / WIDTH**0.5,
        "down": jax.random.normal(keys[2], (num_experts, HIDDEN, WIDTH)) / HIDDEN**0.5,
    }
    return experts, x, jax.random.normal(keys[3], (WIDTH, num_experts)) / WIDTH**0.5


def gradient(capacity: float | None):
    def block(weights, rows, dot):
        return dot(jax.nn.relu(dot(rows, weights["up"])), weights["down"])

    def loss(experts, x, router):
        y, routing = mw.moe(block, experts, x, x @ router, top_k=TOP_K, capacity=capacity)
        return jnp.square(y).mean() + 0.01 * routing.balance_loss

    return jax.jit(jax.grad(loss, (0, 2)))


if __name__ == "__main__":
    main()
