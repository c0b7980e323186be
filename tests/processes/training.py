"""A small run that uses much of the core at once: the same numbers on any number of processes."""

import json
import shutil
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

ROWS = [np.random.default_rng(i).normal(size=8).astype(np.float32) for i in range(50)]


def collate(examples):
    x = np.stack(examples)
    return {"x": x, "y": x[:, :4].sum(1)}


def error(params, batch, mean):
    """[B]: of a trained layer on a frozen one of eight-bit weights."""
    hidden = jnp.tanh((batch["x"] - mean) @ (params["backbone"] / jnp.float32(100)))
    return (hidden @ params["head"] - batch["y"]) ** 2


def loss(params, batch, key, model_state):
    mean = (model_state["mean"] + batch["x"].mean(0)) / 2
    return error(params, batch, mean).mean(), {}, {"mean": mean}


def measure(params, batch, model_state):
    return {"error": error(params, batch, model_state["mean"])}


def predicted(params, model_state):
    """Predict for rows that no batch divides; return what process 0 writes, and what all are told."""
    predict = lambda params, batch, model_state, key: {
        "error": error(params, batch, model_state["mean"]),
        "noise": jax.random.normal(key, batch["y"].shape),
    }
    deployer = mw.Deployer(seed=0, mesh="data=-1", verbose=False)
    predictor = mw.Predictor(deployer, predict=predict, collate=collate)
    size, options = 16 // jax.device_count(), {"model_state": model_state}
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "preds.jsonl"
        predictor.predict(iter(ROWS[:21]), size, params, to=to, **options)
        lines = mw.processes._internal.on_lead(to.read_text).splitlines()
    found = predictor.predict(ROWS[:21], size, params, **options)
    return [json.loads(line) for line in lines], jax.tree.map(float, found)


def init(key):
    return {"hidden": jax.random.normal(key, (8, 16)) / 4, "out": jnp.ones(16)}


def apply(params, x):
    return jnp.tanh(x @ params["hidden"]) @ params["out"]


def noisy_loss(model, batch, key, train):
    noise = 0.1 * jax.random.normal(key, batch["y"].shape) if train else 0.0
    errors = (model(batch["x"]) + noise - batch["y"]) ** 2
    return errors.mean(), {"positive": mw.Mean.of(errors, batch["y"] > 0)}


def correlation(examples, preds):
    return {"correlation": np.corrcoef([row[:4].sum() for row in examples], preds)[0, 1]}


def fitted():
    """Fit to the middle of an epoch, and in another trainer to the end; return what came out."""
    folder = Path(mw.processes._internal.agree(tempfile.mkdtemp()))
    deployer = mw.Deployer(seed=0, mesh="data=-1,tensor=2", verbose=False, workdir=folder)
    model = {"model": (init, apply), "collate": collate}
    predictor = mw.Predictor(deployer, predict=lambda model, batch: model(batch["x"]), **model)
    evaluation = mw.Evaluation("loss", ROWS[:21], predict=predictor, metric_fn=correlation)
    for max_steps in (4, None):
        trainer = mw.Trainer(deployer, loss=noisy_loss, optimizer=optax.adam(0.05), **model)
        options = {
            "max_steps": max_steps,
            "logging": mw.Logging(every=1),
            "save": mw.Save(keep=mw.checkpoints.best("eval/correlation", "max")),
            "evaluations": {"eval": evaluation},
        }
        scores = trainer.fit(ROWS, batch_size=16, epochs=3, **options)
    best = trainer.best("eval/correlation", "max").params
    reports = mw.processes._internal.on_lead(lambda: mw.observe.read_jsonl(folder / "metrics.jsonl"))
    mw.processes._internal.on_lead(lambda: shutil.rmtree(folder))
    return {
        "scores": scores,
        "losses": [(report["step"], report["loss"]) for report in reports if "loss" in report],
        "out": np.asarray(trainer.params["out"]).tolist(),
        "best": float(jax.jit(jnp.sum)(best["hidden"])),
    }


def described():
    """Run an experiment that evaluates by what it reports; return what came out."""
    folder, given = Path(mw.processes._internal.agree(tempfile.mkdtemp())), []

    def when(step, metrics):
        given.append(metrics.get("steps_per_second"))  # each process has a clock of its own
        return metrics.get("loss", 0) > 0

    stack = lambda rows: collate(rows) | {"id": np.arange(len(rows))}
    values = lambda params, batch: {"error": (apply(params, batch["x"]) - batch["y"]) ** 2}
    outputs = lambda params, batch: {"id": batch["id"], **values(params, batch)}
    predicting = {
        "predict": lambda params, batch: apply(params, batch["x"]),
        "metric_fn": lambda examples, preds: {"correlation": np.corrcoef(examples["y"], preds)[0, 1]},
    }
    experiment = mw.Experiment(
        workdir=str(folder),
        model=init,
        loss=lambda params, batch, key: values(params, batch)["error"].mean(),
        optimizer=optax.chain(optax.sgd(0.01), mw.training.keep_ema(0.5)),
        input=mw.Input(stack(ROWS), batch_size=16),
        max_steps=4,
        logging=mw.Logging(
            every=2, trackers=(lambda: 1 / 0, lambda step, values: values["of no report"])
        ),  # they fail on process 0 alone
        evaluations={
            "few": mw.Evaluation(values, stack(ROWS[:21]), when, batch_size=16, outputs=outputs, **predicting)
        },
    )
    scores = mw.run(experiment).scores
    files = lambda: {path.name: path.read_text() for path in sorted((folder / "outputs/few").iterdir())}
    found = mw.processes._internal.on_lead(files)
    heard = mw.processes._internal.gather(given)
    mw.processes._internal.on_lead(lambda: shutil.rmtree(folder))
    return {
        "scores": dict(scores),
        "outputs": {name: [json.loads(line) for line in text.splitlines()] for name, text in found.items()},
        "all_heard_process_0": all(one == heard[0] for one in heard),
    }


def trained():
    """Train from ready parameters, over an iterator's batches; return what came out, as JSON's values."""
    layout = mw.Layout(mw.make_mesh("data=-1,tensor=2"), (mw.parallel.match("backbone", "tensor"),))
    params = {"backbone": np.arange(128, dtype=np.int8).reshape(8, 16), "head": jnp.ones(16)}
    model = mw.training.Variables(params, {"mean": np.zeros(8, np.float32)})
    tx = mw.training.Trainable("head", optax.adam(0.05))
    batches = mw.batches(lambda: iter(ROWS), 16, layout.batch_sharding, collate=collate)
    losses = []
    state = mw.fit(
        mw.make_step(loss, tx, layout, microbatches=2),
        mw.training.state_from(model, tx, 0, layout),
        batches,
        max_steps=4,
        log=mw.observe.logger(lambda step, values: losses.append(values["loss"]), mw.engine.every(1)),
    )
    batches.close()
    held_out = lambda: mw.data.padded_batches(ROWS[:21], 16, layout.batch_sharding, collate=collate)
    return {
        "losses": losses,
        "head": np.asarray(state.params["head"]).tolist(),
        "mean": np.asarray(state.model_state["mean"]).tolist(),
        "scores": mw.engine.Evaluator(measure, held_out, layout, mw.engine.never)(
            mw.engine.Tick(4, last=True), state
        ),
        "fitted": fitted(),
        "described": described(),
        "predicted": predicted(params, {"mean": np.ones(8)}),
        "is_frozen": bool(jax.jit(lambda x: (x == params["backbone"]).all())(state.params["backbone"])),
        "given": [float(x.sum()) for x in jax.tree.leaves(model)],
        "data": batches.get_state(),
    }
