"""A linear classifier with a model state of several dtypes, described as an experiment."""

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
    params = {"kernel": jax.random.normal(key, (8, CLASSES)) / 8**0.5, "bias": jnp.zeros(CLASSES)}
    state = {"mean": jnp.zeros(8), "count": jnp.int32(0), "scale": jnp.full(8, 1.5, jnp.bfloat16)}
    return mw.training.Variables(params, {**state, "key": jax.random.key(7)})


def measure(params, batch, model_state):
    """Return each example's loss and whether its label was guessed."""
    x = (batch["x"] - model_state["mean"]) * model_state["scale"].astype(jnp.float32)
    logits = x @ params["kernel"] + params["bias"]
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


def experiment(workdir: str, steps: int) -> mw.Experiment:
    """Describe the run; its newest checkpoint is kept."""
    return mw.Experiment(
        workdir=workdir,
        mesh="data=2,fsdp=2,tensor=2",
        rules=(mw.parallel.match("kernel", "fsdp", "tensor"), mw.parallel.match("bias", "tensor")),
        model=init,
        loss=loss,
        optimizer=optax.chain(optax.adamw(0.1), mw.training.keep_ema(0.9)),
        input=mw.Input(TRAIN, batch_size=16),
        max_steps=steps,
        evaluations={"test": mw.Evaluation(measure, TEST, when=2, batch_size=16)},
        save=mw.Save(when=2, keep=mw.checkpoints.best("test/accuracy", "max")),
        logging=mw.Logging(every=1),
        compile=mw.Compile(cache=False),
    )
