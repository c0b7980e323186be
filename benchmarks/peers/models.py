"""Models to be trained by anybody: plain functions on a dictionary of layers."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

import meshwright as mw

Params = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Model:
    """A classifier as plain functions, and how its parameters are split over the tensor axis."""

    title: str
    input_shape: tuple[int, ...]
    shapes: dict[str, tuple[int, ...]]
    """Of the kernels, in the order in which they are applied: the last dimension is the output's."""
    apply: Callable[[Params, jax.Array], jax.Array]
    rules: tuple[mw.parallel._internal.Rule, ...]

    def init(self) -> Params:
        rng = np.random.default_rng(0)
        return {name: _layer(rng, shape) for name, shape in self.shapes.items()}

    def loss(self, params: Params, batch: dict[str, jax.Array]) -> jax.Array:
        logits = self.apply(params, batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    def examples(self, num_examples: int) -> list[dict[str, Any]]:
        rng = np.random.default_rng(1)
        images = rng.normal(size=(num_examples, *self.input_shape)).astype(np.float32)
        labels = rng.integers(10, size=num_examples, dtype=np.int32)
        return [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]


def _layer(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    kernel = rng.normal(size=shape) * np.prod(shape[:-1]) ** -0.5
    return {"kernel": kernel.astype(np.float32), "bias": np.zeros(shape[-1], np.float32)}


def _dense(layer: dict[str, Any], x: jax.Array) -> jax.Array:
    return x @ layer["kernel"] + layer["bias"]


def _convolved(layer: dict[str, Any], x: jax.Array) -> jax.Array:
    """[B, H, W, C] -> [B, H/2, W/2, D]: convolved, rectified and pooled."""
    dimensions = ("NHWC", "HWIO", "NHWC")
    x = jax.lax.conv_general_dilated(x, layer["kernel"], (1, 1), "SAME", dimension_numbers=dimensions)
    x = jax.nn.relu(x + layer["bias"])
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def _mlp(params: Params, x: jax.Array) -> jax.Array:
    *hidden, out = [layer for _, layer in sorted(params.items())]
    for layer in hidden:
        x = jax.nn.relu(_dense(layer, x))
    return _dense(out, x)


def _cnn(params: Params, x: jax.Array) -> jax.Array:
    for name in ("conv_0", "conv_1"):
        x = _convolved(params[name], x)
    x = jax.nn.relu(_dense(params["hidden"], x.reshape(len(x), -1)))
    return _dense(params["out"], x)


# Columns, then rows, so that every second layer's sum is what the devices exchange.
MLP = Model(
    "network 64-32-16-10",
    (64,),
    {"hidden_0": (64, 32), "hidden_1": (32, 16), "out": (16, 10)},
    _mlp,
    (
        mw.parallel.match("hidden_0/kernel", None, "tensor"),
        mw.parallel.match("hidden_0/bias", "tensor"),
        mw.parallel.match("hidden_1/kernel", "tensor"),
        mw.parallel.match(".*"),
    ),
)
CNN = Model(
    "convolutions 32-64, network 3136-256-10",
    (28, 28, 1),
    {"conv_0": (3, 3, 1, 32), "conv_1": (3, 3, 32, 64), "hidden": (3136, 256), "out": (256, 10)},
    _cnn,
    (
        mw.parallel.match("conv_0/kernel", None, None, None, "tensor"),
        mw.parallel.match("conv_1/kernel", None, None, "tensor"),
        mw.parallel.match("hidden/kernel", None, "tensor"),
        mw.parallel.match("(conv_0|hidden)/bias", "tensor"),
        mw.parallel.match("out/kernel", "tensor"),
        mw.parallel.match(".*"),
    ),
)


def mlp(num_layers: int, width: int) -> Model:
    """Return a network of so many hidden layers of one width, its parameters on every device."""
    sizes = [64, *[width] * num_layers, 10]
    names = [f"hidden_{i:03}" for i in range(num_layers)] + ["out"]
    title = f"network 64-{f'{num_layers}×' if num_layers > 1 else ''}{width}-10"
    shapes = dict(zip(names, itertools.pairwise(sizes), strict=True))
    return Model(title, (64,), shapes, _mlp, (mw.parallel.match(".*"),))
