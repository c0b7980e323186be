"""A small problem that draws random numbers, and ways to train on it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype(np.float32)
EXAMPLES = {"x": X, "y": (X @ RNG.normal(size=4)).astype(np.float32)}
"""50 examples: three batches of 16 and a rest of 2, which eight devices do not divide."""


def init(key):
    return {"w": jax.random.normal(key, (4,)), "b": jnp.zeros(())}


def apply(params, x):
    return x @ params["w"] + params["b"]


def loss(model, batch, key, train):
    noise = 0.1 * jax.random.normal(key, batch["y"].shape) if train else 0.0
    return ((model(batch["x"]) + noise - batch["y"]) ** 2).mean()


def exact_loss(params, examples=EXAMPLES):
    """The evaluation loss, as NumPy computes it."""
    errors = examples["x"] @ np.asarray(params["w"]) + np.asarray(params["b"]) - examples["y"]
    return np.mean(errors.astype(np.float64) ** 2)


def deployer(workdir=None, mesh="data=-1", **options):
    return mw.Deployer(0, verbose=False, workdir=workdir, mesh=mesh, **options)


def trainer(workdir=None, mesh="data=-1", *, given=None, **options):
    chosen = {"model": (init, apply), "loss": loss, "optimizer": optax.adam(0.1)} | options
    return mw.Trainer(given or deployer(workdir, mesh), **chosen)


def by_loss(examples=EXAMPLES, **options):
    """An evaluation by the loss, for `fit`: its scores are called `eval/loss` and so on."""
    return {"eval": mw.Evaluation("loss", examples, **options)}


def fit(made, examples=EXAMPLES, **options):
    return made.fit(examples, **{"batch_size": 16, "epochs": 2} | options)


def arrays(made):
    """All that training moves, as bytes."""
    return [np.asarray(x).tobytes() for x in jax.tree.leaves((made.params, made.model_state, made.state))]


def reports(workdir, name="loss"):
    """The steps and values reported under a name, in order."""
    found = mw.observe.read_jsonl(workdir / "metrics.jsonl")
    return [(report["step"], report[name]) for report in found if name in report]


def saved(workdir):
    """The steps of which there is a checkpoint."""
    return sorted(int(path.name.removeprefix("step_")) for path in (workdir / "checkpoints").glob("step_*"))
