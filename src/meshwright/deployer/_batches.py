"""Batches of examples on the deployer's mesh: how large, in how many parts, and with which learning rates."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import NamedSharding

from meshwright import process
from meshwright.arguments import declares
from meshwright.deployer._log import Log
from meshwright.errors import LayoutError, UsageError
from meshwright.input import Batches, Collate, as_source, batches, is_indexed
from meshwright.metrics import Bar
from meshwright.sharding import Layout
from meshwright.train import schedule
from meshwright.tree import PyTree


@dataclass(frozen=True)
class LrSchedule:
    """A learning rate as a function of the optimizer's step, which knows what it takes for a step."""

    rate: optax.Schedule
    microbatches: int
    """The number of micro-batches in one step."""

    def __call__(self, step: Any) -> Any:
        return self.rate(step)


@dataclass(frozen=True)
class Batching:
    """The part of the mesh that splits batches, and what is told of them."""

    layout: Layout
    log: Log

    def get_local_global_micro_batch_size(self, per_device_batch_size: int) -> tuple[int, int]:
        """Return how many examples of a micro-batch this process reads, and how many there are in it.

        "Per device" means for each part into which the mesh's batch axes, data and fsdp, split a batch.

        Raises:
          UsageError: `per_device_batch_size` is less than 1.
        """
        if per_device_batch_size < 1:
            raise UsageError(f"per_device_batch_size={per_device_batch_size}: it must be at least 1.")
        holders = _holders(self.layout.batch_sharding, self.layout.batch_ways)
        local = parts_read_by(jax.process_index(), holders)
        return per_device_batch_size * local, per_device_batch_size * self.layout.batch_ways

    def get_accumulate_grad_batches(self, batch_size: int, per_device_batch_size: int) -> int:
        """Return in how many micro-batches a batch of `batch_size` is computed.

        Give it to `get_lr_schedule_fn`, too, which else takes each micro-batch for a step.

        Raises:
          LayoutError: It is no whole number.
        """
        _, micro = self.get_local_global_micro_batch_size(per_device_batch_size)
        mesh, ways = self.layout.mesh, self.layout.batch_ways
        if batch_size < 1 or batch_size % micro:
            raise LayoutError(
                f"a batch of {batch_size} is no whole number of micro-batches of {micro}, which are "
                f"{per_device_batch_size} × {ways} on mesh {dict(mesh.shape)}.\n"
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
        """Return an iterator over one pass, as global batches on the mesh; what fills no batch is left out.

        Args:
          examples: A list, or whatever else `mw.batches` takes. Each process reads its share of each batch.
          collate: Makes a dictionary of arrays of a list of examples, `collate(examples=...)`.
          shuffle_key: The order is drawn from it, if `shuffle`.
          desc: The progress bar says it, with the size of the batches.
          microbatches: The progress bar says it, too.

        Raises:
          UsageError: It is to be shuffled without a `shuffle_key`.
          ExamplesError: There are no examples, or, when they are read, they make no batch.
        """
        _, size = self.get_local_global_micro_batch_size(per_device_batch_size)
        sharding, seed = self.layout.batch_sharding, _seed(shuffle_key) if shuffle else None
        data = batches(examples, size, sharding, collate=_by_keyword(collate), seed=seed, epochs=1)
        number = len(as_source(examples)) if is_indexed(examples) else None
        said = {"number of examples": str(number), "size of a batch": str(size)}
        process.compare("the examples", lambda: said)
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
        """Return the learning rate as a function of the *optimizer* step. See `mw.train.schedule`.

        The number of steps is that of `epochs` over `train_size` examples, an incomplete batch at the end
        of each left out.

        Args:
          microbatches: So many micro-batches make one step, whether a Trainer accumulates them or
            `optax.MultiSteps` does.

        Raises:
          UsageError: There are no steps to decay in, or another impossible combination.
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
    """Return how many parts of each batch a process reads: those that any of its devices holds.

    Where a part is on devices of several processes, each of them reads it.

    Args:
      holders: int[parts, devices of a part], the processes that the devices belong to.
    """
    return int((holders == process).any(axis=1).sum())


def _holders(sharding: NamedSharding, num_parts: int) -> np.ndarray:
    """Return the processes that hold each part of a batch: int[parts, devices of a part]."""
    held: list[list[int]] = [[] for _ in range(num_parts)]
    for device, (rows,) in sharding.devices_indices_map((num_parts,)).items():
        held[rows.indices(num_parts)[0]].append(device.process_index)
    return np.array(held)


def _num_steps(train_size: int, micro: int, accumulated: int, epochs: int) -> int:
    """Return how many updates `epochs` make of batches of `accumulated` micro-batches."""
    if accumulated < 1:
        raise UsageError(f"microbatches={accumulated}: it must be at least 1.")
    size = micro * accumulated
    steps = epochs * (train_size // size)
    if steps < 1:
        raise UsageError(
            f"{epochs} epochs of {train_size} examples have no step: a batch takes {size}, "
            f"in {accumulated} micro-batches of {micro}."
        )
    return steps


def _placed(data: Batches, sharding: NamedSharding) -> Iterator[PyTree]:
    """Yield the batches as arrays on the mesh, so that a step of anyone's is computed where they lie."""
    with contextlib.closing(data):
        for batch in data:
            yield jax.device_put(batch, sharding)


def _seed(shuffle_key: jax.Array | None) -> int:
    if shuffle_key is None:
        raise UsageError("shuffle=True needs a shuffle_key, such as deployer.gen_rng().")
    words = np.asarray(jax.random.key_data(shuffle_key)).tolist()
    return int(np.random.SeedSequence(words).generate_state(1)[0])  # drawn on the host: nothing to compile


def _by_keyword(collate: Callable[..., PyTree]) -> Collate:
    if not declares(collate, "examples"):
        return collate
    return lambda examples: collate(examples=examples)


def _sizes(size: int, is_train: bool, accumulated: int | None) -> str:
    if not is_train:
        return f"batch_size = {size}"
    return f"global_micro_batch_size = {size}" + (
        f", microbatches = {accumulated}" if accumulated is not None else ""
    )
