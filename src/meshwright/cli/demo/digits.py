"""Handwritten digits: 1,797 real images of 8 × 8 pixels and a network of two layers; seconds on a laptop.

The images are the test half of "Optical Recognition of Handwritten Digits" by E. Alpaydin and
C. Kaynak (1998), UCI Machine Learning Repository, doi:10.24432/C50P49, licensed CC BY 4.0.
"""

import functools
import importlib.resources

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

NUM_TEST = 360
WEIGHTS = (
    mw.parallel.match("hidden/kernel", "fsdp", "tensor"),
    mw.parallel.match("hidden/bias", "tensor"),
    mw.parallel.match("out/kernel", ("tensor", "fsdp")),
)


def digits() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return `(train, test)`, each with images float32[n, 64] in 0..1 and labels int32[n], shuffled."""
    with importlib.resources.files("meshwright.cli.demo").joinpath("digits.npz").open("rb") as file:
        bundled = np.load(file)
        image = bundled["image"].reshape(-1, 64).astype(np.float32) / 16
        label = bundled["label"].astype(np.int32)
    order = np.random.default_rng(0).permutation(len(label))
    test, train = order[:NUM_TEST], order[NUM_TEST:]
    return {"image": image[train], "label": label[train]}, {"image": image[test], "label": label[test]}


def init(key, width: int = 128):
    """Return initial parameters."""
    hidden, out = jax.random.split(key)
    return {
        "hidden": {"kernel": jax.random.normal(hidden, (64, width)) / 8, "bias": jnp.zeros(width)},
        "out": {"kernel": jax.random.normal(out, (width, 10)) / width**0.5, "bias": jnp.zeros(10)},
    }


def measure(params, batch):
    """Return the loss of each example, and whether its label was predicted."""
    hidden = jax.nn.relu(batch["image"] @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    logits = hidden @ params["out"]["kernel"] + params["out"]["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return {"loss": losses, "accuracy": logits.argmax(-1) == batch["label"]}


def loss(params, batch, key):
    """Return the mean loss of a batch, and the accuracy to report beside it."""
    measured = measure(params, batch)
    return measured["loss"].mean(), {"accuracy": measured["accuracy"].mean()}


def experiment(
    workdir: str = "runs/digits", learning_rate: float = 3e-3, width: int = 128, steps: int = 900
) -> mw.Experiment:
    """Return the experiment. Its settings can be changed on the command line: `learning_rate=1e-3`."""
    train, test = digits()
    return mw.Experiment(
        workdir=workdir,
        mesh="data=-1",
        model=functools.partial(init, width=width),
        loss=loss,
        optimizer=optax.adamw(
            mw.training.schedule("cosine", peak=learning_rate, max_steps=steps), weight_decay=0.01
        ),
        input=mw.Input(train, batch_size=64),
        max_steps=steps,
        rules=WEIGHTS,
        evaluations={"test": mw.Evaluation(measure, test, when=300, batch_size=120)},
        save=mw.Save(when=100),
    )
