"""The parts that the engine is given: state, step, data, and the number of steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import jax

from meshwright import tree
from meshwright.engine._evaluations import EvaluationPart
from meshwright.sharding import Layout
from meshwright.train import Step, TrainState, nothing
from meshwright.tree import PyTree


class Data(Protocol):
    """Global batches, and the position after the batch last returned."""

    @property
    def wait_seconds(self) -> float:
        """Return how long the run has waited for batches, in all."""
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
        """Continue from a position that `get_state` gave."""
        ...


@dataclass(frozen=True)
class Training:
    """The parts of a run. The state is structs, and nothing is compiled."""

    layout: Layout
    target: TrainState
    """The state as structs with shardings."""
    batch: PyTree
    """A global batch as structs."""
    step: Step
    data: Data
    last_step: Callable[[], int]
    """Returns the updates in all, counting those before a restart; it is asked when the data stand where they
    go on from."""
    first_state: Callable[[int | None], Callable[[], TrainState]]
    """Told the step of the newest checkpoint, or None where a first state is needed, it reads what that is
    made from, and returns its maker."""
    evaluations: Sequence[EvaluationPart] = ()
    facts: Callable[[], Mapping[str, str]] = dict
    """Returns by name what must be the same on all processes of the state and the examples."""
    remarks: Sequence[str] = ()
    """Lines to show before it starts."""
    first_step: Callable[[], int] = lambda: 0
    """Returns the updates that were made before this training, whose scores it does not go by."""
    num_steps: Callable[[int], int | None] = lambda done: None
    """Returns from the updates made so far those in all, for progress; None if only the data knows."""
    is_continued: bool = False
    """True if the first state is that of an earlier training of this process: it is not looked for in
    checkpoints, and what was checked is not checked again."""
    other_batches: Sequence[PyTree] = ()
    """Global batches of all other shapes that may come, as structs."""
    asked: str = ""
    """The user's argument for the length of training, as text: `max_steps=100`."""
    reached: Callable[[TrainState], None] = nothing
    """Is told the state after each step."""


def global_batch(rows: PyTree, batch_size: int) -> PyTree:
    """Return the structs of a global batch from some rows of it."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype)),
        tree.abstract(rows),
    )
