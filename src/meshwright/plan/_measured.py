"""Measured speeds of CPU devices: no data sheet knows how many devices share how many cores.

Products and collectives are timed alone. The speed of memory depends too much on the operation for that:
a small transformer's step is timed, and the time that its products and collectives do not explain counts
as memory time.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.lm._internal import decoder
from meshwright.parallel._internal import Layout, make_mesh
from meshwright.plan._estimate._traced import traced_costs
from meshwright.plan._roofline import Rates, step_time
from meshwright.training._internal import init_state, make_step

# Sides of two square products. Their times separate a product's fixed cost from the cost of its operations.
SMALL, LARGE = 64, 384

SENT_BYTES = 2**22
REPETITIONS, TURNS = 7, 4
# Its feed_forward width is not a power of two: with 256, a step took a tenth longer than with 344.
MODEL = decoder.Config(layers=2)
LENGTH, EXAMPLES = 128, 8


def measured_rates(devices: Sequence[jax.Device]) -> Rates:
    """Return the speeds of each device while all of `devices` do the same work.

    Measuring takes a few seconds.
    """
    mesh = make_mesh({"data": len(devices)}, devices)
    fixed, flops = _line(2 * SMALL**3, _product(mesh, SMALL), 2 * LARGE**3, _product(mesh, LARGE))
    of_none, of_bytes = _exchange(mesh, 1), _exchange(mesh, SENT_BYTES)
    sent = 2 * SENT_BYTES * (mesh.size - 1) / mesh.size
    link = sent / max(of_bytes - of_none, 1e-9) if sent else 1.0
    rates = Rates(
        flops={"float32": flops},
        memory=float("inf"),
        link=link,
        network=link,
        source=f"speeds just measured on {mesh.size} CPU devices of this machine",
        product_seconds=fixed,
        member_seconds=of_none / mesh.size,
    )
    return replace(rates, memory=_memory(mesh, rates))


def _line(x0: float, y0: float, x1: float, y1: float) -> tuple[float, float]:
    """Return the fixed cost in seconds, and the units of work per second beyond it, from two measurements."""
    slope = max(y1 - y0, 1e-12) / (x1 - x0)
    return max(0.0, y0 - slope * x0), 1 / slope


def _product(mesh: Mesh, side: int) -> float:
    return _of_each(mesh, lambda x: x @ x, (side, side))


def _exchange(mesh: Mesh, nbytes: int) -> float:
    return _of_each(mesh, lambda x: jax.lax.psum(x, "data"), (max(1, nbytes // 4),))


def _memory(mesh: Mesh, rates: Rates) -> float:
    """Return the memory speed in bytes per second that explains the time of a small transformer's step."""
    layout, tx = Layout(mesh), optax.adam(1e-3)
    init = functools.partial(decoder.init, MODEL)
    step = make_step(lambda params, batch, key: decoder.loss(MODEL, params, batch), tx, layout)
    state = init_state(init, tx, 0, layout)
    rows = np.zeros((math.ceil(EXAMPLES / mesh.size) * mesh.size, LENGTH + 1), np.int32)
    batch = jax.device_put({"tokens": rows}, layout.batch_sharding)
    costs = traced_costs(step.trace(state, batch).jaxpr, state, layout)
    explained = step_time(
        costs.products,
        0,
        costs.collectives,
        rates,
        inside={"data": mesh.size},
        over={},
        batch_axes=frozenset(),
    )

    def run_step() -> object:
        nonlocal state
        state, metrics = step(state, batch)
        return metrics

    seconds = _median_seconds(run_step)
    return costs.other_nbytes / max(seconds - explained.seconds, seconds / 10)


def _of_each(mesh: Mesh, function: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> float:
    """Return the seconds that `function` of an array of this shape takes when all devices run it at once."""

    def several(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, TURNS, lambda _, y: function(y) * 1e-3, x)

    split = P("data", *(None for _ in shape))
    whole = jnp.ones((mesh.size, *shape), jnp.float32, device=NamedSharding(mesh, split))
    run = jax.jit(
        jax.shard_map(jax.vmap(several), mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    )
    return _median_seconds(lambda: run(whole)) / TURNS


def _median_seconds(run: Callable[[], object]) -> float:
    jax.block_until_ready(run())
    times = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - started)
    return statistics.median(times)
