"""Runs to report of: a real one, and directories written by the writers that real ones use."""

import json
import re
from pathlib import Path

import numpy as np

import meshwright as mw
from engine.experiment.runs import EXAMPLES, loss, measure
from engine.experiment.runs import experiment as described
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.report._page import write_page
from meshwright.report._run import read_run

DESCRIPTION = """workdir = 'runs/a'
optimizer = optax.sgd(learning_rate=0.1)
max_steps = 40
evaluations.test.when = 20
save.keep = meshwright.checkpoints.best(metric='test/wrong', mode='min', num_checkpoints=1)
"""
STARTED = {"compile_seconds": 0.5, "num_params": 8.0, "device_bytes": 96.0}


def experiment(run, **more):
    evaluation = mw.Evaluation(
        measure, EXAMPLES, when=4, batch_size=24, outputs=lambda params, batch: {"y": batch["x"]}
    )
    return described(
        run, **{"evaluations": {"all": evaluation}, "loss": loss, "logging": mw.Logging(every=1)} | more
    )


def write_run(directory, losses=(3.0, 2.0, 1.5, 1.25), *, scores=(), settings=DESCRIPTION, outcome=None):
    """Write a run of 10 steps a report: its losses, and by step what its evaluation found."""
    write = mw.observe.jsonl(directory / "metrics.jsonl")
    write(0, STARTED)
    for i, value in enumerate(losses, start=1):
        write(10 * i, {"loss": value, "steps_per_second": 5.0, **dict(scores).get(10 * i, {})})
    (directory / "experiment.txt").write_text(settings)
    (directory / "environment.json").write_text(json.dumps({"mesh": {"data": 8}, "packages": {"jax": "1.2"}}))
    (directory / "state.txt").write_text("params/w 4 × 2\n")
    (directory / "logs").mkdir(exist_ok=True)
    with Checkpoints(directory / "checkpoints") as checkpoints:
        checkpoints.save(20, {"params": {"w": np.zeros(8, np.float32)}})
    if outcome is not None:
        (directory / "outcome.json").write_text(json.dumps(outcome))
    return directory


def page_of(directory):
    return Path(write_page(read_run(directory))).read_text()


def chart_of(directory, title="loss"):
    named = (figure for figure in re.findall(r"<figure>.*?</figure>", page_of(directory), re.S))
    return next(figure for figure in named if re.search(f"<figcaption><b>{title}</b>", figure))
