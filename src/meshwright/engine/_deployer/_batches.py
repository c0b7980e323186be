"""Batches on the deployer's mesh: their sizes, their micro-batches, and learning rates for them."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding

from meshwright.base._internal import PyTree, declares
from meshwright.data._internal import Batches, Collate, as_source, batches, is_indexed
from meshwright.engine._deployer._log import Log
from meshwright.errors import LayoutError, UsageError
from meshwright.observe._internal import Bar
from meshwright.parallel._internal import Layout
from meshwright.processes import _internal as processes
from meshwright.training._internal import schedule


@dataclass(frozen=True)
class LrSchedule:
    """A learning rate as a function of the optimizer's step. It knows how many micro-batches make a step."""

    rate: optax.Schedule
    microbatches: int
    """The number of micro-batches in one step."""

    def __call__(self, step: Any) -> Any:
        return self.rate(step)


@dataclass(frozen=True)
class Batching:
    """The batches of a deployer, for its mesh and its log."""

    layout: Layout
    """The mesh, which splits the batches."""
    log: Log
    """The log that gets messages about them."""

    def get_local_global_micro_batch_size(self, per_device_batch_size: int) -> tuple[int, int]:
        """Return the numbers of examples in a micro-batch: those that this process reads, and all.

        Args:
          per_device_batch_size: The number of examples for each part into which the batch axes of the mesh,
            data and fsdp, split a batch.

        Raises:
          UsageError: `per_device_batch_size` is less than 1.
        """
        if per_device_batch_size < 1:
            raise UsageError(f"per_device_batch_size={per_device_batch_size}: it must be at least 1.")
        holders = _holders(self.layout.batch_sharding, self.layout.batch_ways)
        local = parts_read_by(jax.process_index(), holders)
        return per_device_batch_size * local, per_device_batch_size * self.layout.batch_ways

    def get_accumulate_grad_batches(self, batch_size: int, per_device_batch_size: int) -> int:
        """Return the number of micro-batches in a batch.

        Give this number to `get_lr_schedule_fn`, too. Otherwise it counts each micro-batch as a step.

        Args:
          batch_size: The number of examples in a batch, over all processes.
          per_device_batch_size: The number of examples in a micro-batch, for each part of the mesh.

        Raises:
          LayoutError: The batch is not a whole number of micro-batches.
        """
        _, micro = self.get_local_global_micro_batch_size(per_device_batch_size)
        mesh, ways = self.layout.mesh, self.layout.batch_ways
        if batch_size < 1 or batch_size % micro:
            raise LayoutError(
                f"batch_size={batch_size} must be a positive multiple of {micro}: a micro-batch has "
                f"{per_device_batch_size} × {ways} examples on mesh {dict(mesh.shape)}.\n"
                f"  Make it a multiple of {micro}, or change per_device_batch_size."
            )
        return batch_size // micro

    def get_model_input_batches(
        self,
        examples: Any,
        per_device_batch_size: int,
        collate: Callable[..., PyTree],
        shuffle: bool,
        shuffle_key: jax.Array | None,
        desc: str | None,
        is_train: bool = False,
        microbatches: int | None = None,
    ) -> Bar[PyTree]:
        """Return an iterator over global batches on the mesh, for one pass. An incomplete batch is left out.

        Args:
          examples: A list, or anything else that `mw.batches` takes. Each process reads its share of each
            batch.
          per_device_batch_size: The number of examples in a batch, for each part of the mesh.
          collate: A function that makes a dictionary of arrays from a list of examples. It is called as
            `collate(examples=...)`.
          shuffle: True to shuffle the examples.
          shuffle_key: The key from which the order is drawn. Only `shuffle=True` needs it.
          desc: The text of the progress bar, which also shows the size of the batches.
          is_train: True to call the size a micro-batch's on the progress bar.
          microbatches: The number of micro-batches in a step, which the progress bar shows.

        Raises:
          UsageError: `shuffle` is True and there is no `shuffle_key`.
          ExamplesError: There are no examples; or, when they are read, they cannot be made into batches.
        """
        _, size = self.get_local_global_micro_batch_size(per_device_batch_size)
        sharding, seed = self.layout.batch_sharding, _seed(shuffle_key) if shuffle else None
        data = batches(examples, size, sharding, collate=_by_keyword(collate), seed=seed, epochs=1)
        number = len(as_source(examples)) if is_indexed(examples) else None
        facts = {"number of examples": str(number), "size of a batch": str(size)}
        processes.compare("the examples", lambda: facts)
        total = None if number is None else number // size
        if total == 0:
            self.log.log_info(f"{desc}: {number} examples do not fill one batch of {size}")
        sizes = _sizes(size, is_train, microbatches)
        return self.log.progress(_placed(data, sharding), total, f"{desc} ({sizes})")

    def get_lr_schedule_fn(
        self,
        train_size: int,
        per_device_batch_size: int,
        epochs: int,
        learning_rate: float,
        schedule_type: str = "linear",
        warmup_ratio: float = 0.0,
        warmup_steps: int | None = None,
        init_learning_rate: float = 0.0,
        end_learning_rate: float = 0.0,
        *,
        microbatches: int = 1,
    ) -> LrSchedule:
        """Return the learning rate as a function of the *optimizer* step. See `mw.training.schedule`.

        The number of steps is that of `epochs` over `train_size` examples, without the incomplete batch at
        the end of each epoch.

        Args:
          train_size: The number of examples in an epoch.
          per_device_batch_size: The number of examples in a micro-batch, for each part of the mesh.
          epochs: The number of epochs.
          learning_rate: The learning rate after the warm-up.
          schedule_type: The shape of the schedule, a `kind` of `mw.training.schedule`.
          warmup_ratio: The share of the steps that warm up.
          warmup_steps: The number of steps that warm up, instead of `warmup_ratio`.
          init_learning_rate: The learning rate at the start of the warm-up.
          end_learning_rate: The learning rate after the last step.
          microbatches: The number of micro-batches in one step, whether a Trainer or `optax.MultiSteps`
            accumulates them.

        Raises:
          UsageError: There is no step, or the arguments contradict each other.
        """
        _, micro = self.get_local_global_micro_batch_size(per_device_batch_size)
        steps = _num_steps(train_size, micro, microbatches, epochs)
        warmup = int(steps * warmup_ratio) if warmup_steps is None else warmup_steps
        self.log.log_info(
            f"{schedule_type} learning rate over {steps} optimizer steps of "
            f"{micro * microbatches} examples, {warmup} to warm up"
        )
        rate = schedule(
            schedule_type,
            peak=learning_rate,
            max_steps=steps,
            warmup_steps=warmup,
            init=init_learning_rate if warmup else None,
            end=end_learning_rate or None,
        )
        return LrSchedule(rate, microbatches)


def parts_read_by(process: int, holders: np.ndarray) -> int:
    """Return how many parts of each batch a process reads: the parts that its devices hold.

    If a part is on devices of several processes, each of these processes reads it.

    Args:
      process: The index of the process.
      holders: Int[parts, devices of a part], the index of the process that each device belongs to.
    """
    return int((holders == process).any(axis=1).sum())


def _holders(sharding: NamedSharding, num_parts: int) -> np.ndarray:
    """Return the indices of the processes that hold each part of a batch: int[parts, devices of a part]."""
    holders: list[list[int]] = [[] for _ in range(num_parts)]
    for device, (rows,) in sharding.devices_indices_map((num_parts,)).items():
        holders[rows.indices(num_parts)[0]].append(device.process_index)
    return np.array(holders)


def _num_steps(train_size: int, micro: int, microbatches: int, epochs: int) -> int:
    """Return the number of updates in `epochs`, of batches of `microbatches` times `micro` examples."""
    if microbatches < 1:
        raise UsageError(f"microbatches={microbatches}: it must be at least 1.")
    size = micro * microbatches
    steps = epochs * (train_size // size)
    if steps < 1:
        raise UsageError(
            f"{epochs} epochs of {train_size} examples have no step: a batch needs {size} examples, "
            f"{microbatches} micro-batches of {micro}.\n"
            "  Give more examples or epochs, or a smaller batch."
        )
    return steps


def _placed(data: Batches, sharding: NamedSharding) -> Iterator[PyTree]:
    """Yield the batches as arrays on the mesh, so that a user's own step function computes on the mesh."""
    with contextlib.closing(data):
        for batch in data:
            yield jax.device_put(batch, sharding)


def _seed(shuffle_key: jax.Array | None) -> int:
    if shuffle_key is None:
        raise UsageError("shuffle=True needs a shuffle_key, such as deployer.gen_rng().")
    words = np.asarray(jax.random.key_data(shuffle_key)).tolist()
    return int(np.random.SeedSequence(words).generate_state(1)[0])  # on the host: compiles nothing


def _by_keyword(collate: Callable[..., PyTree]) -> Collate:
    if not declares(collate, "examples"):
        return collate
    return lambda examples: collate(examples=examples)


def _sizes(size: int, is_train: bool, microbatches: int | None) -> str:
    if not is_train:
        return f"batch_size = {size}"
    return f"global_micro_batch_size = {size}" + (
        f", microbatches = {microbatches}" if microbatches is not None else ""
    )
