"""A small network with a model state of several dtypes, described as an experiment."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

CLASSES = 4


def examples(seed: int, n: int) -> dict[str, np.ndarray]:
    """Return vectors and, as their label, in which of the first four numbers they are largest."""
    x = np.random.default_rng(seed).normal(size=(n, 8)).astype(np.float32)
    return {"x": x, "label": x[:, :CLASSES].argmax(-1).astype(np.int32)}


TRAIN, TEST = examples(0, 96), examples(1, 40)


def init(key):
    """Return the parameters, and a state with a moving mean, a counter, bfloat16 numbers and a typed key."""
    hidden, out = jax.random.split(key)
    params = {
        "hidden": {"kernel": jax.random.normal(hidden, (8, 16)) / 8**0.5, "bias": jnp.zeros(16)},
        "out": {"kernel": jax.random.normal(out, (16, CLASSES)) / 4, "bias": jnp.zeros(CLASSES)},
    }
    state = {"mean": jnp.zeros(8), "count": jnp.int32(0), "scale": jnp.full(8, 1.5, jnp.bfloat16)}
    return mw.train.Variables(params, {**state, "key": jax.random.key(7)})


def measure(params, batch, model_state):
    """Return each example's loss and whether its label was guessed."""
    x = (batch["x"] - model_state["mean"]) * model_state["scale"].astype(jnp.float32)
    hidden = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    logits = hidden @ params["out"]["kernel"] + params["out"]["bias"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return {"loss": losses, "accuracy": logits.argmax(-1) == batch["label"]}


def loss(params, batch, key, model_state):
    """Return the mean loss of a batch with noise on its vectors, the accuracy, and the new model state."""
    noise = 0.1 * jax.random.normal(key, batch["x"].shape)
    noisy = {**batch, "x": batch["x"] + noise}
    measured = jax.tree.map(jnp.mean, measure(params, noisy, model_state))
    mean = 0.9 * model_state["mean"] + 0.1 * batch["x"].mean(0)
    moved = {**model_state, "mean": mean, "count": model_state["count"] + 1}
    return measured["loss"], {"accuracy": measured["accuracy"]}, moved


def optimizer() -> optax.GradientTransformation:
    """Return AdamW on clipped gradients, and an average of the parameters."""
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.1))
    return optax.chain(clipped, mw.train.keep_ema(0.9))


def experiment(workdir: str = "runs/small", steps: int = 12) -> mw.Experiment:
    """Describe the run; kept are its newest checkpoint and its best."""
    best = mw.checkpoint.best("test/accuracy", "max", without_metric="drop")
    return mw.Experiment(
        workdir=workdir,
        mesh="data=2,fsdp=2,tensor=2",
        rules=(
            mw.match("hidden/kernel", "fsdp", "tensor"),
            mw.match("hidden/bias", "tensor"),
            mw.match("out/kernel", ("tensor", "fsdp")),
        ),
        model=init,
        loss=loss,
        optimizer=optimizer(),
        input=mw.Input(TRAIN, batch_size=16),
        max_steps=steps,
        evaluations={"test": mw.Evaluation(measure, TEST, when=4, batch_size=16)},
        save=mw.Save(when=4, keep=mw.checkpoint.any_of(mw.checkpoint.last(1), best)),
        logging=mw.Logging(every=1),
        compile=mw.Compile(cache=False),
    )
