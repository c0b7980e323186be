"""Programs that cannot be continued to the bit, each by another fault.

`meshwright verify-resume resumes.py:experiment fault=unseeded` names the cause in `EXPECTED`.
"""

import random
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

BATCH, NUM_EXAMPLES, WIDTH = 8, 64, 4

EXPECTED = {
    "none": "",
    "unseeded": "unseeded data",
    "augmented": "unseeded data",
    "traced": "random call at trace time",
    "initialised": "random call at trace time",
    "loader": "position of the data",
    "from_the_beginning": "position of the data",
    "counter": "state outside",
    "narrow": "saved form",
}
"""The cause that the command must name, by fault; none for a program without a fault."""


def arrays(rng: np.random.Generator) -> dict[str, np.ndarray]:
    x = rng.normal(size=(NUM_EXAMPLES, WIDTH)).astype(np.float32)
    return {"x": x, "y": x.sum(-1)}


def augmented(example: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**example, "x": example["x"] + np.float32(random.gauss(0, 0.1))}


class Loader:
    """Examples in an order that depends on how many were read before, which nobody saves."""

    def __init__(self) -> None:
        self._num_read = 0
        self._examples = arrays(np.random.default_rng(0))

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        order = list(range(NUM_EXAMPLES))
        random.Random(self._num_read).shuffle(order)
        for i in order:
            self._num_read += 1
            yield {name: x[i] for name, x in self._examples.items()}


def examples_of(fault: str) -> Any:
    if fault == "unseeded":
        return arrays(np.random.default_rng())
    if fault == "augmented":
        return mw.data.mapped(augmented, arrays(np.random.default_rng(0)))
    return Loader() if fault == "loader" else arrays(np.random.default_rng(0))


CALLS = [0]


def counted(x: np.ndarray) -> np.ndarray:
    CALLS[0] += 1
    return np.float32(1 + 0.01 * CALLS[0]) * x


def loss_of(fault: str) -> Any:
    def loss(params, batch, key):
        error = ((batch["x"] @ params["w"] - batch["y"]) ** 2).mean()
        if fault == "traced":
            return error * np.random.uniform(0.9, 1.1)
        if fault == "counter":
            factor = jax.pure_callback(counted, jax.ShapeDtypeStruct((), np.float32), jnp.float32(1))
            return error * jax.lax.stop_gradient(factor)
        return error

    return loss


def init_of(fault: str) -> Any:
    def init(key):
        if fault == "initialised":
            return {"w": jnp.asarray(np.random.normal(size=WIDTH), jnp.float32)}
        return {"w": jax.random.normal(key, (WIDTH,))}

    return init


def experiment(workdir: str = "runs/resume", fault: str = "none") -> mw.Experiment:
    return mw.Experiment(
        workdir=workdir,
        model=init_of(fault),
        loss=loss_of(fault),
        optimizer=optax.adam(0.05),
        input=mw.Input(examples_of(fault), batch_size=BATCH),
        max_steps=100,
        save=mw.Save(
            cast="bfloat16" if fault == "narrow" else (), data_position=fault != "from_the_beginning"
        ),
    )
