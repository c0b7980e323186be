"""The parts of a run that callers make for the engine: state, step, data, and the number of steps."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, Self

import jax

from meshwright.base._internal import PyTree, tree
from meshwright.engine._evaluations import EvaluationPart
from meshwright.parallel._internal import Layout
from meshwright.training._internal import Step, TrainState, Tx, frozen_names, nothing


class Data(Protocol):
    """An iterator over global batches that knows its position, which is after the last batch it returned."""

    @property
    def wait_seconds(self) -> float:
        """The seconds that the run has waited for batches in total."""
        ...

    def __iter__(self) -> Self: ...

    def __next__(self) -> PyTree: ...

    def is_empty(self) -> bool:
        """Return whether there are no whole batches left."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Return the position."""
        ...

    def set_state(self, state: dict[str, Any], /) -> None:
        """Continue from a position that `get_state` returned."""
        ...


@dataclass(frozen=True)
class Training:
    """The parts of a run. The state has no values yet, and nothing is compiled."""

    layout: Layout
    """The sharding of each leaf of the state."""
    target: TrainState
    """The state as structs with shardings."""
    optimizer: Tx
    """The optimizer, which says what is not trained."""
    batch: PyTree
    """A global batch as structs."""
    step: Step
    """The step of training."""
    data: Data
    """The global batches."""
    first_rows: Callable[[], PyTree]
    """Returns some rows of the first batch."""
    last_step: Callable[[], int]
    """Returns the total number of updates, including those before a restart. It is called when `data` is at
    the position from which the run continues."""
    first_state: Callable[[int | None], Callable[[], TrainState]]
    """Gets the step of the newest checkpoint, or None if the run must make a first state. It reads the values
    that the state is made from, and returns a function that makes the state."""
    evaluations: Sequence[EvaluationPart] = ()
    """The evaluations of the run."""
    facts: Callable[[], Mapping[str, str]] = dict
    """Returns facts about the state and the examples by name, which must be the same on all processes."""
    told: Sequence[str] = ()
    """Facts to show before the run starts."""
    remarks: Sequence[str] = ()
    """Warnings to show before the run starts."""
    first_step: Callable[[], int] = lambda: 0
    """Returns the number of updates before this training. The scores of earlier steps do not count for it."""
    num_steps: Callable[[int], int | None] = lambda done: None
    """Returns the total number of updates for the progress bar, from the number so far; None if it depends on
    the data."""
    is_continued: bool = False
    """True if the first state is that of an earlier training of this process. Then it is not restored from a
    checkpoint, and the checks are not repeated."""
    other_batches: Sequence[PyTree] = ()
    """Global batches of all other shapes that the data may have, as structs."""
    asked: str = ""
    """The user's argument for the length of the training, as text: `max_steps=100`."""
    has_dropout: bool = False
    """True if the model is known to have dropout layers with a rate above 0."""
    began_from: list[str] = field(default_factory=list)
    """Descriptions of the checkpoints that a new first state was made from; `first_state` adds them."""
    reached: Callable[[TrainState], None] = nothing
    """Gets the state after each step."""

    @cached_property
    def frozen(self) -> Collection[str]:
        """The names of the parameters that are not trained, and of the model state that does not change."""
        return frozen_names(self.optimizer, self.target.params, self.target.model_state)


def global_batch(rows: PyTree, batch_size: int) -> PyTree:
    """Return a global batch as structs."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype)),
        tree.abstract(rows),
    )
