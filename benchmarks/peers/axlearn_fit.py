"""AXLearn's `SpmdTrainer` with everything on, beside a bare loop over the very step that it jitted.

AXLearn needs another jax than ours, so this runs in an environment of its own, and prints JSON:

    python benchmarks/experiment_overhead.py --axlearn-python PYTHON

All take one numpy batch again and again, which costs nothing to make: AXLearn's users would have tf.data.
"""

import argparse
import itertools
import json
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from axlearn.common import layers, learner, optimizers
from axlearn.common.base_model import BaseModel
from axlearn.common.checkpointer import Checkpointer
from axlearn.common.checkpointer import every_n_steps_policy as save_every
from axlearn.common.config import REQUIRED, Required, config_class, config_for_function
from axlearn.common.evaler import SpmdEvaler
from axlearn.common.evaler import every_n_steps_policy as evaluate_every
from axlearn.common.module import Module
from axlearn.common.param_init import DefaultInitializer
from axlearn.common.summary_writer import SummaryWriter
from axlearn.common.trainer import SpmdTrainer
from peers.loops import Moment, Run, Span, bare_loop, measure

NOT_DUE = 10**6  # steps
WARM = 50  # steps before those that are timed: each call of `run` jits anew


class Batches:
    """Hands out one batch as often as asked for, and notes when its steps began and ended."""

    def __init__(self, batch_size: int):
        rng = np.random.default_rng(0)
        self.batch = {
            "image": rng.random((batch_size, 64), np.float32),
            "label": rng.integers(10, size=batch_size).astype(np.int32),
        }
        self.num_steps, self.given = 0, 0
        self.begin = self.end = Moment.now()

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        if self.given == WARM:
            self.begin = Moment.now()
        if self.given == WARM + self.num_steps:
            self.end = Moment.now()
            raise StopIteration
        self.given += 1
        return self.batch


class Input(Module):
    """What AXLearn makes of a description of an input."""

    @config_class
    class Config(Module.Config):
        is_training: Required[bool] = REQUIRED
        batch_size: Required[int] = REQUIRED

    def __init__(self, cfg: Config, *, parent: Module):
        super().__init__(cfg, parent=parent)
        self.batches = Batches(cfg.batch_size)

    def dataset(self) -> Batches:
        return self.batches


class Network(BaseModel):
    """The network of `meshwright demo digits`, with as many hidden layers as asked for."""

    @config_class
    class Config(BaseModel.Config):
        num_layers: Required[int] = REQUIRED
        width: Required[int] = REQUIRED

    def __init__(self, cfg: Config, *, parent: Module):
        super().__init__(cfg, parent=parent)
        sizes = [64, *[cfg.width] * cfg.num_layers, 10]
        for i, (before, after) in enumerate(itertools.pairwise(sizes)):
            dense = layers.Linear.default_config().set(input_dim=before, output_dim=after)
            self._add_child(f"layer{i}", dense)

    def forward(self, input_batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        x = input_batch["image"]
        *hidden, out = self.children.values()
        for layer in hidden:
            x = jax.nn.relu(layer(x))
        logits, labels = out(x), input_batch["label"]
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)
        accuracy = (logits.argmax(-1) == labels).mean()
        self.add_summary("accuracy", accuracy)
        return losses.mean(), {"accuracy": accuracy}


def trainer(
    options: argparse.Namespace, directory: str, *, write_every: int = 1, num_evaluators: int = 2
) -> SpmdTrainer:
    """Return a trainer with averages, clipping, skipping, a watchdog, and evaluations and saves not due."""
    batches = Input.default_config().set(batch_size=options.batch_size)
    evaluator = SpmdEvaler.default_config().set(
        input=batches, eval_policy=config_for_function(evaluate_every).set(n=NOT_DUE)
    )
    save_policy = config_for_function(save_every).set(n=NOT_DUE)
    config = SpmdTrainer.default_config().set(
        name="trainer",
        dir=directory,
        mesh_axis_names=("data", "model"),
        mesh_shape=(options.devices, 1),
        model=_network(options),
        input=batches,
        learner=_learner(),
        checkpointer=Checkpointer.default_config().set(save_policy=save_policy),
        evalers={f"evaler{i}": evaluator.clone() for i in range(num_evaluators)},
        summary_writer=SummaryWriter.default_config().set(write_every_n_steps=write_every),
        start_trace_steps=[NOT_DUE],
        watchdog_timeout_seconds=3600,
    )
    return config.instantiate(parent=None)


def _network(options: argparse.Namespace) -> Network.Config:
    return Network.default_config().set(
        dtype=jnp.float32,
        param_init=DefaultInitializer.default_config(),
        num_layers=options.layers,
        width=options.width,
    )


def _learner() -> learner.Learner.Config:
    adamw = config_for_function(optimizers.adamw_optimizer).set(
        learning_rate=1e-3, b1=0.9, b2=0.999, eps=1e-8
    )
    guarded = config_for_function(optimizers.skip_and_clip_by_global_norm).set(
        inner=adamw, drop_norm=100, max_norm=1
    )
    described = learner.Learner.default_config().set(optimizer=guarded)
    described.ema.decay = 0.999
    return described


def fit_loop(trainer: SpmdTrainer) -> Run:
    def run(num_steps: int) -> Span:
        batches = trainer.input.batches
        batches.num_steps, batches.given = num_steps, 0
        trainer.run(jax.random.PRNGKey(0))
        jax.block_until_ready(trainer.trainer_state)
        return Span(num_steps, batches.begin, batches.end)

    return run


def own_bare_loop(trainer: SpmdTrainer) -> Run:
    """A loop over a trainer's step, from a copy of its state; the trainer has run before."""
    state = jax.tree_util.tree_map(jnp.copy, trainer.trainer_state)
    step = trainer._jit_train_step  # which has no public name
    run = bare_loop(step, state, _for_ever(trainer.input.batches.batch))

    def in_mesh(num_steps: int) -> Span:
        with trainer.mesh():
            return run(num_steps)

    return in_mesh


def _for_ever(batch: Any) -> Iterator[Any]:
    while True:
        yield batch


def loops(options: argparse.Namespace, directory: str) -> dict[str, Run]:
    def folder(name: str) -> str:
        return str(Path(directory) / name)

    first = trainer(options, folder("first"))
    writing = fit_loop(first)
    writing(1)  # makes its step and its state
    return {
        "bare": own_bare_loop(first),
        "SpmdTrainer": writing,
        "SpmdTrainer, writing each 50": fit_loop(trainer(options, folder("rare"), write_every=50)),
        "the same, 20 evaluators": fit_loop(
            trainer(options, folder("many"), write_every=50, num_evaluators=20)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Host time per step of AXLearn's SpmdTrainer.")
    for name in ("devices", "layers", "width", "batch-size", "steps", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    jax.config.update("jax_default_prng_impl", "rbg")  # as AXLearn's launcher does
    with tempfile.TemporaryDirectory() as directory:
        costs = measure(loops(options, directory), steps=options.steps, rounds=options.rounds)
    versions = {name: version(name) for name in ("axlearn", "jax")}
    found = {name: vars(cost) for name, cost in costs.items()}
    print(json.dumps({"versions": versions, "us_per_step": found}))


if __name__ == "__main__":
    main()
