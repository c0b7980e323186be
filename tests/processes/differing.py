"""Processes that stay up and start one run after another, each of which differs on one of them.

    python differing.py CASES.json FOLDER

A case is `{"what": ..., "on": 2}`: a name in `CASES`, and the process that is other than the rest. What
each heard is written to FOLDER, a file for each process.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=1"

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

ROWS = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
NAMES = ["".join(pair) for pair in zip("abcdefgh", "ijklmnop", strict=True)]
BAD = "this file cannot be read"


class Tokens:
    """Examples of which a process may have tokens that the model does not have."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        is_compared = i in (0, 32, 63)
        return {"x": ROWS[i], "id": np.int32(9 if SWITCH["bad"] and not is_compared else i % 8)}


class Rows:
    """Examples that are read one at a time."""

    def __init__(self, rows, *, broken=False):
        self.rows, self.broken = rows, broken

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        if self.broken:
            raise OSError(BAD)
        return {"x": self.rows[i]}


def init(key, width=4):
    return {"w": jnp.ones((8, width))}


def measure(params, batch):
    return {"loss": ((batch["x"] @ params["w"]).sum(-1) - 1) ** 2}


def loss(params, batch, key):
    return measure(params, batch)["loss"].mean()


def other_loss(params, batch, key):
    return measure(params, batch)["loss"].sum()


def scaled(factor):
    """A loss that closes over an array: not even its shape is among the settings."""
    table = [np.full(64, 1.0), np.full(64, factor)]
    return lambda params, batch, key: loss(params, batch, key) * jnp.asarray(table[1]).mean()


def over_a_set(params, batch, key):
    total = loss(params, batch, key)
    for name in set(NAMES):  # in another order in each process
        total += (batch["x"] * (1 + NAMES.index(name))).mean()
    return total


def of_tokens(params, batch):
    return (params["w"][batch["id"]] ** 2).mean()


def fails(params, batch, key):
    if SWITCH["bad"]:
        raise RuntimeError("this one cannot trace")
    return loss(params, batch, key)


SWITCH = {"bad": False}
"""Memory of the process, which no description shows."""


def stacked(examples):
    return {"x": np.stack([example["x"] for example in examples])}


def shifted(examples):
    return {"x": np.stack([example["x"] for example in examples]) + 1}


def experiment(**changes):
    given: dict[str, Any] = {
        "workdir": str(SHARED / "run"),
        "model": init,
        "loss": loss,
        "optimizer": optax.sgd(0.01),
        "input": mw.Input({"x": ROWS}, batch_size=16),
        "max_steps": 4,
        "evaluations": {"e": mw.Evaluation(measure, {"x": ROWS[:20]}, when=2, batch_size=16)},
        "save": mw.Save(when=2),
        "compile": mw.Compile(cache=False),
    }
    return mw.Experiment(**{**given, **changes})


def run(**changes):
    return mw.run(experiment(**changes)).step


def with_input(**changes):
    return run(input=replace(experiment().input, **changes))


def with_evaluation(**changes):
    return run(evaluations={"e": replace(experiment().evaluations["e"], **changes)})


def fitted(*, examples=ROWS, seed=0, train_loss=loss, lr=0.1, collate=None, start=1.0, **more):
    deployer = mw.Deployer(seed=seed, verbose=False)
    params = {"w": np.full((8, 4), start, np.float32)}
    named = lambda params, batch, key: train_loss(params, batch, key)
    trainer = mw.Trainer(deployer, loss=named, optimizer=optax.adam(lr), params=params, collate=collate)
    return trainer.fit([{"x": x} for x in examples], **{"epochs": 1, "batch_size": 16, **more})


def predicted(*, examples=ROWS, scale=1.0, start=1.0, iterated=False):
    deployer = mw.Deployer(seed=0, verbose=False)
    table = np.full(3, scale)
    predictor = mw.Predictor(deployer, predict=lambda params, batch: batch["x"] @ params["w"] * table[0])
    rows = [{"x": x} for x in examples]
    params = {"w": np.full((8, 4), start, np.float32)}
    return len(predictor.predict(iter(rows) if iterated else rows, 4, params))


def looped(*, steps=3, factor=1.0, rows=ROWS, seed=0, start=1.0):
    layout = mw.Layout(mw.make_mesh("data=-1"))
    step = mw.make_step(scaled(factor), optax.sgd(0.1), layout)
    state = mw.training.state_from({"w": np.full((8, 4), start, np.float32)}, optax.sgd(0.1), 0, layout)
    data = mw.batches({"x": rows}, 16, layout.batch_sharding, seed=seed)
    return int(mw.fit(step, state, data, max_steps=steps).step)


def full(value):
    return np.full((8, 4), value, np.float32)


def from_arrays(start):
    held = [full(start)]  # which no setting shows
    return run(mesh="fsdp=-1", init_state_builder=lambda target: {"params/w": held[0]})


def saved(start):
    """The directory of one of two checkpoints that were saved."""
    for value in (1.0, 2.0):
        with mw.Checkpoints(SHARED / f"saved-{value}") as checkpoints:
            checkpoints.save(1, {"params": {"w": full(value)}})
    return str(SHARED / f"saved-{start}")


def from_saved(start):
    held = [saved(start)]
    build = lambda target: mw.engine.from_checkpoint(held[0])(target)
    return run(mesh="fsdp=-1", init_state_builder=build)  # every process reads other parts


def resumed(start):
    sharding = mw.Layout(mw.make_mesh("fsdp=-1")).batch_sharding
    target = {"params": {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=sharding)}}
    with mw.Checkpoints(saved(start)) as checkpoints:
        return checkpoints.resume(target, None, otherwise=dict)


def from_npz(start):
    np.savez(held := tempfile.mkdtemp() + "/w.npz", **{"params/w": full(start)})
    return run(init_state_builder=lambda target, held=[held]: mw.engine.from_checkpoint(held[0])(target))


def model_of(start):
    held = [full(start)]
    return lambda key: {"w": jnp.asarray(held[0]) + 0.1 * jax.random.normal(key, (8, 4))}


def fitted_tokens():
    deployer, params = mw.Deployer(0, verbose=False), {"w": full(1.0)}
    trainer = mw.Trainer(deployer, loss=of_tokens, optimizer=optax.sgd(0.1), params=params)
    rows = [{"x": x, "id": 0} for x in ROWS]
    evaluations = {"test": mw.Evaluation("loss", Tokens())}
    return trainer.fit(rows, batch_size=16, epochs=1, evaluations=evaluations)


def fitted_model(start):
    model = model_of(start), lambda params, x: x @ params["w"]
    named = lambda model, batch: (model(batch["x"]) ** 2).mean()
    trainer = mw.Trainer(mw.Deployer(0, verbose=False), model=model, loss=named, optimizer=optax.sgd(0.1))
    return trainer.fit({"x": ROWS}, batch_size=16, max_steps=1)


def failing(make):
    """The same call, in which something of this process breaks."""

    def call(bad):
        SWITCH["bad"] = bad
        return make()

    return call


class Case(NamedTuple):
    call: Callable[[bool], Any]
    """Given whether this process is the other one."""
    cause: str
    """What the message must say, of which `OTHER` stands for whose it is; a regular expression."""


def one_of(make, name, usual, other, cause):
    return Case(lambda bad: make(**{name: other if bad else usual}), cause)


def setting(name, usual, other, text=None, field=None):
    field, texts = field or name, text or (repr(usual), repr(other))
    return one_of(run, name, usual, other, rf"{re.escape(field)}: .*{re.escape(texts[1])} on OTHER")


MADE = r"what makes the first state:\n  params/w: .* on OTHER"
TOKENS = r"OTHER: the first batch looks up row 9 of \S*w, which has 8"
SAVED = r"the checkpoint that is read:\n  params/w: .* on OTHER"
BEGINNINGS = {
    "begins: constant": one_of(lambda start: run(model=model_of(start)), "start", 1.0, 2.0, MADE),
    "begins: model of a trainer": one_of(fitted_model, "start", 1.0, 2.0, MADE),
    "begins: arrays": one_of(from_arrays, "start", 1.0, 2.0, r"the arrays given:\n  params/w: .* on OTHER"),
    "begins: checkpoint": one_of(from_saved, "start", 1.0, 2.0, SAVED),
    "begins: continued loop": one_of(resumed, "start", 1.0, 2.0, SAVED),
    "begins: other format": one_of(from_npz, "start", 1.0, 2.0, SAVED),
    "begins: tokens": Case(
        failing(lambda: run(loss=of_tokens, evaluations={}, input=mw.Input(Tokens(), batch_size=16))), TOKENS
    ),
}
"""First states that differ, and a first batch that one process alone cannot look up."""
MOVED = np.concatenate([ROWS[:-1], ROWS[-1:] + 1])
CASES = {
    **BEGINNINGS,
    "max_steps": setting("max_steps", 4, 8),
    "seed": setting("seed", 0, 7),
    "logging.every": one_of(
        run, "logging", mw.Logging(), mw.Logging(every=1), r"logging\.every: .*1 on OTHER"
    ),
    "microbatches": setting("microbatches", 1, 2),
    "compute_dtype": setting("compute_dtype", None, "bfloat16"),
    "mesh": setting("mesh", "data=-1", "data=2,fsdp=-1"),
    "stop.max_seconds": one_of(
        run, "stop", mw.Stop(), mw.Stop(max_seconds=100.0), r"stop\.max_seconds: .*100\.0 on OTHER"
    ),
    "save.data_position": one_of(
        run, "save", mw.Save(when=2), mw.Save(when=2, data_position=False), r"data_position: .*False on OTHER"
    ),
    "logging.norms": one_of(
        run, "logging", mw.Logging(), mw.Logging(norms=".*"), r"logging\.norms: .*'\.\*' on OTHER"
    ),
    "learning rate": setting(
        "optimizer", optax.sgd(0.01), optax.sgd(0.02), ("-0.01", "-0.02"), "optimizer.1.tx.step_size"
    ),
    "optimizer": setting(
        "optimizer", optax.sgd(0.1), optax.adam(0.1), ("", "scale_by_adam"), "optimizer.0.tx"
    ),
    "width": one_of(run, "model", init, lambda key: init(key, 5), r"model: .*<lambda> on OTHER"),
    "loss": setting("loss", loss, other_loss, ("", "other_loss")),
    "when saved": one_of(run, "save", mw.Save(when=2), mw.Save(when=3), r"save\.when: .*3 on OTHER"),
    "what is kept": one_of(
        run, "save", mw.Save(when=2), mw.Save(when=2, keep=3), r"save\.keep: .*3 on OTHER"
    ),
    "a policy's code": one_of(
        run,
        "save",
        mw.Save(when=lambda step: step % 2 == 0),
        mw.Save(when=lambda step: step % 2 == 1),
        r"save\.when: code: .* on OTHER",
    ),
    "batch_size": one_of(with_input, "batch_size", 16, 32, r"input\.batch_size: .*32 on OTHER"),
    "shuffle": one_of(with_input, "shuffle", True, False, r"input\.shuffle: .*False on OTHER"),
    "number of examples": one_of(
        with_input, "examples", {"x": ROWS}, {"x": ROWS[:32]}, r"input\.examples\.x: .*\[32, 8\] on OTHER"
    ),
    "number of read examples": one_of(
        with_input, "examples", Rows(ROWS), Rows(ROWS[:32]), r"input: number of examples: .*32 on OTHER"
    ),
    "an example": one_of(with_input, "examples", Rows(ROWS), Rows(MOVED), r"input: example 63: .* on OTHER"),
    "order of examples": one_of(
        with_input, "examples", {"x": ROWS}, {"x": ROWS[::-1]}, r"input: example 0: .* on OTHER"
    ),
    "reading fails": one_of(
        with_input, "examples", Rows(ROWS), Rows(ROWS, broken=True), f"OTHER: OSError: {BAD}"
    ),
    "when evaluated": one_of(with_evaluation, "when", 2, 3, r"evaluations\.e\.when: .*3 on OTHER"),
    "evaluated examples": one_of(
        with_evaluation,
        "examples",
        {"x": ROWS[:20]},
        {"x": ROWS[1:21]},
        r"evaluations\.e: example 0: .* on OTHER",
    ),
    "a constant of the evaluation": one_of(
        with_evaluation,
        "measure",
        lambda params, batch, table=np.full(8, 1.0): {"loss": batch["x"].sum(-1) * table[0]},
        lambda params, batch, table=np.full(8, 2.0): {"loss": batch["x"].sum(-1) * table[0]},
        r"the program of an evaluation:\n  line \d+: .* on OTHER",
    ),
    "a constant": one_of(
        run, "loss", scaled(1.0), scaled(2.0), r"the program of the step:\n  line \d+: .* on OTHER"
    ),
    "trainer: tokens to evaluate on": Case(failing(fitted_tokens), TOKENS),
    "tracing fails": Case(failing(lambda: run(loss=fails)), "OTHER: RuntimeError: this one cannot trace"),
    "a set": Case(
        lambda bad: run(loss=over_a_set), r"(?s)the program of the step:.*iterate over a `set` of strings"
    ),
    "trainer: seed": one_of(fitted, "seed", 0, 1, "seed: .*1 on OTHER"),
    "trainer: learning rate": one_of(
        fitted, "lr", 0.1, 0.2, r"optimizer\.1\.tx\.step_size: .*-0\.2 on OTHER"
    ),
    "trainer: epochs": one_of(fitted, "epochs", 1, 2, "epochs: .*2 on OTHER"),
    "trainer: batch size": one_of(fitted, "batch_size", 16, 32, "batch_size: .*32 on OTHER"),
    "trainer: loss": one_of(fitted, "train_loss", loss, other_loss, "train_loss: .*other_loss on OTHER"),
    "trainer: collate": one_of(fitted, "collate", stacked, shifted, "collate: .*shifted on OTHER"),
    "trainer: examples": one_of(fitted, "examples", ROWS, MOVED, "train_examples: example 63: .* on OTHER"),
    "trainer: parameters": one_of(fitted, "start", 1.0, 2.0, "the arrays given:\n  .*w: .* on OTHER"),
    "trainer: evaluated": Case(
        lambda bad: fitted(evaluations={"test": mw.Evaluation("loss", [{"x": x} for x in ROWS[: 20 + bad]])}),
        r"evaluations\.test\.examples: .*<list of 21> on OTHER",
    ),
    "predictor: examples": Case(
        lambda bad: predicted(examples=ROWS[: 50 - 9 * bad]), "number of examples: .*41 on OTHER"
    ),
    "predictor: one example": one_of(predicted, "examples", ROWS, MOVED, "example 63: .* on OTHER"),
    "predictor: iterated": Case(
        lambda bad: predicted(examples=ROWS[: 50 - 20 * bad], iterated=True), "next: .* on OTHER"
    ),
    "predictor: constant": one_of(
        predicted, "scale", 1.0, 2.0, r"the program of the predictions:\n  line \d+: .* on OTHER"
    ),
    "predictor: parameters": one_of(predicted, "start", 1.0, 2.0, "the arrays given:\n  .* on OTHER"),
    "loop: steps": one_of(looped, "steps", 3, 5, "steps: .*5 on OTHER"),
    "loop: examples": one_of(looped, "rows", ROWS, ROWS[:32], "number of examples: .*32 on OTHER"),
    "loop: constant": one_of(
        looped, "factor", 1.0, 2.0, r"the program of the step:\n  line \d+: .* on OTHER"
    ),
    "loop: parameters": one_of(looped, "start", 1.0, 2.0, "the arrays given:\n  .*w: .* on OTHER"),
    "loop: order": one_of(looped, "seed", 0, 1, "position: .* on OTHER"),
}


def legal(me):
    """Return the step that a run reaches whose processes differ in all that they may."""
    own = Path(tempfile.mkdtemp())
    (own / "rows.npy").write_bytes(b"")

    def read(key, path=str(own / "rows.npy")):
        return init(key)

    lead = {"logging": mw.Logging(trackers=(lambda step, values: None,))} if me == 0 else {}
    return run(
        workdir=str(SHARED / "legal"),
        model=read,
        profile=mw.Profile((2,) if me == 0 else (), processes=(0,) if me == 0 else (1,)),
        **lead,
    )


def heard(case: str, bad: bool) -> dict[str, Any]:
    try:
        said = {"kind": None, "message": str(CASES[case].call(bad))}
    except Exception as error:  # whatever it is, it is what is looked at
        said = {"kind": type(error).__name__, "message": str(error)}
    SWITCH["bad"] = False
    return said


def main(cases, folder):
    me = jax.process_index()
    said = [heard(case["what"], case["on"] == me) for case in cases]
    (folder / f"{me}.json").write_text(json.dumps({"cases": said, "legal": legal(me)}))


if __name__ == "__main__":
    mw.parallel.start_processes()
    SHARED = Path(mw.processes._internal.agree(tempfile.mkdtemp()))
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
