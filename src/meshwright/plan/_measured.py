"""What CPU devices get done, measured: no data sheet knows how many of them share how many cores."""

import statistics
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.plan._roofline import Rates

SMALL, LARGE = 64, 384
"""Sides of square products, by whose times a product's fixed cost is told from that of its operations."""
PASS_BYTES = 2**22
REPETITIONS = 7


def measured_rates(devices: Sequence[jax.Device]) -> Rates:
    """Return what each of `devices` gets done while all of them do the same. Takes a second or two."""
    mesh = Mesh(np.array(devices), ("all",), axis_types=(AxisType.Auto,))
    fixed, flops = _line(2 * SMALL**3, _product(mesh, SMALL), 2 * LARGE**3, _product(mesh, LARGE))
    of_none, of_bytes = _exchange(mesh, 1), _exchange(mesh, PASS_BYTES)
    sent = 2 * PASS_BYTES * (len(devices) - 1) / len(devices)
    link = sent / max(of_bytes - of_none, 1e-9) if sent else 1.0
    return Rates(
        flops={"float32": flops},
        memory=2 * PASS_BYTES / _pass(mesh),
        link=link,
        network=link,
        source=f"what {len(devices)} CPU devices of this machine were measured to do just now",
        product_seconds=fixed,
        collective_seconds=of_none,
    )


def _line(x0: float, y0: float, x1: float, y1: float) -> tuple[float, float]:
    """Return the cost of nothing, and how much is done in a second beyond it."""
    slope = max(y1 - y0, 1e-12) / (x1 - x0)
    return max(0.0, y0 - slope * x0), 1 / slope


def _product(mesh: Mesh, side: int) -> float:
    return _seconds(mesh, lambda x: x @ x, (side, side))


def _pass(mesh: Mesh) -> float:
    """A pass that exponentiates, as softmax and most activations do."""
    return _seconds(mesh, lambda x: x * jnp.exp(-x), (PASS_BYTES // 4,))


def _exchange(mesh: Mesh, nbytes: int) -> float:
    return _seconds(mesh, lambda x: jax.lax.psum(x, "all"), (max(1, nbytes // 4),))


def _seconds(mesh: Mesh, function: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> float:
    """Return the median time of `function` of an array of this shape on each device, all at once."""
    turns = 4

    def several(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, turns, lambda _, y: function(y) * 1e-3, x)

    split = P(*("all", *(None for _ in shape)))
    whole = jnp.ones((mesh.size, *shape), jnp.float32, device=NamedSharding(mesh, split))
    mapped = jax.shard_map(jax.vmap(several), mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    run = jax.jit(mapped)
    jax.block_until_ready(run(whole))
    times = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        jax.block_until_ready(run(whole))
        times.append((time.perf_counter() - started) / turns)
    return statistics.median(times)
