"""Runs that end with NaN, each by another fault: `meshwright train nans.py:experiment fault=log`.

`meshwright nan RUN` names the operation, and the other things in `EXPECTED`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

BATCH, STEPS, WIDTH = 8, 12, 4
BAD_STEP = 7
"""The step whose batch has the bad example, where a fault is in the data."""
BAD_ROW = 5
LAYERS = 4

EXPECTED: dict[str, dict[str, Any]] = {
    "log": {"operation": "log", "part": "forward", "rows": [BAD_ROW]},
    "masked_row": {"operation": "sub", "part": "forward", "rows": [BAD_ROW]},
    "zero_by_zero": {"operation": "div", "part": "forward", "rows": [BAD_ROW]},
    "float16": {"operation": "mul", "part": "forward", "rows": [BAD_ROW]},
    "bfloat16": {"operation": "exp", "part": "forward", "rows": [BAD_ROW]},
    "update": {"operation": "div", "part": "update"},
    "infinite_example": {"operation": "", "part": "input", "rows": [BAD_ROW]},
    "gradient_of_sqrt": {"operation": "div", "part": "gradient", "rows": [BAD_ROW]},
    "gradient_of_where": {"operation": "div", "part": "gradient", "rows": [BAD_ROW]},
    "layer": {"operation": "log", "part": "forward", "loops": "iteration 2 of a scan of 4"},
    "remat": {"operation": "log", "part": "forward", "loops": "iteration 2 of a scan of 4"},
    "custom_gradient": {"operation": "div", "part": "gradient", "rows": [BAD_ROW]},
    "while_loop": {"operation": "mul", "part": "forward", "loops": "of a while", "rows": [BAD_ROW]},
}
"""What the command must find, by fault."""


def examples(fault: str) -> dict[str, np.ndarray]:
    """Return examples; one row of one step is bad."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 1.5, (BATCH * STEPS, WIDTH)).astype(np.float32)
    mask = np.ones((BATCH * STEPS, WIDTH), bool)
    bad = (BAD_STEP - 1) * BATCH + BAD_ROW
    x[bad] = {
        "log": -3.0,
        "float16": 1e4,
        "bfloat16": 200.0,
        "infinite_example": np.inf,
        "while_loop": 1e30,
    }.get(fault, 0.0 if fault not in ("masked_row", "layer", "remat", "update") else 1.0)
    mask[bad] = fault != "masked_row"
    return {"x": x, "mask": mask}


def init(key: jax.Array) -> dict[str, Any]:
    return {"scale": jnp.ones((WIDTH,)), "layers": {"w": jnp.stack([jnp.eye(WIDTH) * 2] * LAYERS)}}


def _log(params, batch):
    return jnp.log(batch["x"] * params["scale"]).mean()


def _masked_row(params, batch):
    scores = jnp.where(batch["mask"], batch["x"] * params["scale"], -jnp.inf)
    return jax.nn.softmax(scores).max(-1).mean()


def _zero_by_zero(params, batch):
    y = batch["x"] * params["scale"]
    return (y / y.sum(-1, keepdims=True)).max(-1).mean()


def _float16(params, batch):
    y = (batch["x"] * params["scale"]).astype(jnp.float16)
    return (y * y).astype(jnp.float32).mean()


def _bfloat16(params, batch):
    y = (batch["x"] * params["scale"]).astype(jnp.bfloat16)
    return jnp.exp(y).astype(jnp.float32).mean()


def _plain(params, batch):
    return ((batch["x"] @ params["layers"]["w"][0]).sum(-1) * params["scale"].sum()).mean()


def _gradient_of_sqrt(params, batch):
    return jnp.sqrt(((batch["x"] * params["scale"]) ** 2).sum(-1)).mean()


def _gradient_of_where(params, batch):
    y = batch["x"] * params["scale"]
    return jnp.where(y > 0, jnp.log(y), 0.0).mean()


def _layer(params, batch):
    return jax.lax.scan(_one_layer, batch["x"], params["layers"]["w"])[0].mean()


def _one_layer(h, w):
    with jax.named_scope("layer"):
        return 2 + jnp.log(jnp.abs(h) @ w), None


def _remat(params, batch):
    return jax.lax.scan(jax.checkpoint(_one_layer), batch["x"], params["layers"]["w"])[0].mean()


@jax.custom_vjp
def _ratio(x):
    return 2 * x


_ratio.defvjp(lambda x: (2 * x, x), lambda x, g: (g / x,))


def _custom_gradient(params, batch):
    return _ratio(batch["x"] * params["scale"]).mean()


def _while_loop(params, batch):
    y = jax.lax.while_loop(lambda y: (y < 10).any(), lambda y: y * y + 0.5, batch["x"])
    return (y * params["scale"]).mean()


LOSSES: dict[str, Callable[..., jax.Array]] = {
    "log": _log,
    "masked_row": _masked_row,
    "zero_by_zero": _zero_by_zero,
    "float16": _float16,
    "bfloat16": _bfloat16,
    "update": _plain,
    "infinite_example": _plain,
    "gradient_of_sqrt": _gradient_of_sqrt,
    "gradient_of_where": _gradient_of_where,
    "layer": _layer,
    "remat": _remat,
    "custom_gradient": _custom_gradient,
    "while_loop": _while_loop,
}


def _dividing_by_steps_left() -> optax.GradientTransformation:
    """Return an optimizer that divides by the number of steps to `BAD_STEP`, which is 0 there."""

    def update(updates, state, params=None):
        return jax.tree.map(lambda g: -1e-3 * g / (BAD_STEP - 1 - state), updates), state + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


def _breaking_a_layer() -> optax.GradientTransformation:
    """Return an optimizer that turns the weights of layer 2 around in the step before `BAD_STEP`."""

    def update(updates, state, params):
        zero = jax.tree.map(jnp.zeros_like, updates)
        turned = jnp.where(state == BAD_STEP - 2, -2 * params["layers"]["w"][2], 0)
        zero["layers"]["w"] = zero["layers"]["w"].at[2].set(turned)
        return zero, state + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


def experiment(workdir: str = "runs/nan", fault: str = "log") -> mw.Experiment:
    optimizers = {"update": _dividing_by_steps_left, "layer": _breaking_a_layer, "remat": _breaking_a_layer}
    return mw.Experiment(
        workdir=workdir,
        model=init,
        loss=LOSSES[fault],
        optimizer=optimizers.get(fault, lambda: optax.sgd(1e-3))(),
        input=mw.Input(examples(fault), batch_size=BATCH, shuffle=False),
        max_steps=STEPS,
        save=mw.Save(when=3),
        logging=mw.Logging(every=2),
    )
