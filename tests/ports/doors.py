"""The doors by which the ports train: a step on one device or eight, a trainer and an experiment on eight.

Each returns the loss of each step, and what it trained. Batches come in order, as those of a loop by hand.
"""

import jax
import numpy as np

import meshwright as mw

ROWS = 8
"""The rows of a batch: one on each of eight devices."""

_MESHES = {1: "data=1", 8: "data=2,fsdp=4"}
SPLIT = (mw.parallel.fsdp(min_size=16), mw.parallel.match(".*"))
"""Rules that split small parameters too, and leave nothing to infer, which takes time."""


def in_order(examples):
    """Return the batches of one epoch that is not shuffled."""
    starts = range(0, len(jax.tree.leaves(examples)[0]), ROWS)
    return [jax.tree.map(lambda x, start=start: x[start : start + ROWS], examples) for start in starts]


def layout_on(devices, **options):
    return mw.Layout(mw.make_mesh(_MESHES[devices], jax.devices()[:devices]), SPLIT, **options)


def by_loss(init, loss, tx, batches, layout):
    """Train by the step of a loss alone, with a loop of one's own around it."""
    return by_step(init, mw.make_step(loss, tx, layout), tx, batches, layout)


def by_step(init, step, tx, batches, layout):
    state, losses = mw.training.init_state(init, tx, 0, layout), []
    for batch in batches:
        state, metrics = step(state, batch)
        losses.append(mw.observe.merge([metrics])["loss"])
    return losses, state


def by_trainer(examples, mesh=_MESHES[8], rules=SPLIT, **described):
    losses = []
    report = lambda step, values: losses.extend([values["loss"]] if "loss" in values else [])
    deployer = mw.Deployer(0, verbose=False, mesh=mesh, trackers=[report])
    trainer = mw.Trainer(deployer, rules=rules, **described)
    trainer.fit(examples, batch_size=ROWS, epochs=1, shuffle=False, logging=mw.Logging(every=1))
    return losses, trainer


def by_experiment(run, examples, mesh=_MESHES[8], rules=SPLIT, **described):
    rows = mw.Input(examples, batch_size=ROWS, shuffle=False)
    max_steps = len(jax.tree.leaves(examples)[0]) // ROWS
    described |= {"input": rows, "max_steps": max_steps, "logging": mw.Logging(every=1)}
    outcome = mw.run(mw.Experiment(workdir=str(run), mesh=mesh, rules=rules, **described))
    reports = mw.observe.read_jsonl(run / "metrics.jsonl")
    return [report["loss"] for report in reports if "loss" in report], outcome.state


def same(ours, theirs):
    """The losses and all arrays are equal to the bit."""
    jax.tree.map(np.testing.assert_array_equal, *map(_named, (ours, theirs)))


def close(ours, theirs, atol=2e-6):
    """The losses and all arrays are as close as sums in another order are."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol), *map(_named, (ours, theirs))
    )


def _named(run):
    losses, arrays = run
    named = {name: np.asarray(x) for name, x in mw.base._internal.named_leaves(arrays).items()}
    return named | {"losses": np.asarray(losses, np.float32)}
