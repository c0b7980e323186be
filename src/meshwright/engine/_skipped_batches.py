"""The batches of a run, without those that it has decided to leave out because of a spike.

Its state is that of the data alone, until something is left out or the rule of spikes has seen values. Then:

    {"batches": 105, "left_out": [[106, 108]], "recent": {"loss": [2.31, …]}, "data": …}
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Self

from meshwright.base._internal import PyTree
from meshwright.engine._spikes import Rule
from meshwright.engine._training import Data

_KEYS = {"batches", "left_out", "recent", "data"}


def position_of_data(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the position of the data alone."""
    return state["data"] if state.keys() == _KEYS else state


class SkippingBatches:
    """The batches of a run, counted from 1 over all attempts, without some ranges of them."""

    def __init__(self, data: Data, rule: Rule | None, num_kept: int):
        self._data, self._rule = data, rule
        self._start = data.get_state()
        self._ranges: list[tuple[int, int]] = []
        self._taken = deque[int](maxlen=num_kept)
        self.number: int | None = None
        """The number of batches so far, left out or not; None until `begin` or `set_state` says."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    @property
    def wait_seconds(self) -> float:
        return self._data.wait_seconds

    def begin(self, step: int) -> None:
        """Set the number of batches so far to that of the steps, unless the position has told it."""
        self.number = step if self.number is None else self.number
        self._taken.clear()

    def restart(self) -> None:
        """Go back to the first batch."""
        self._data.set_state(self._start)
        self.number = 0
        if self._rule is not None:
            self._rule.set_state({})

    def leave_out(self, ranges: Sequence[Sequence[int]]) -> None:
        """Leave out batches from now on."""
        self._ranges = sorted({*self._ranges, *((first, last) for first, last in ranges)})

    def numbers(self, ago: int, num_before: int) -> tuple[int, int]:
        """Return the numbers of the batch that was returned `ago` batches before the last, and of one
        before.
        """
        number = self._taken[-1 - ago]
        return number, max(1, number - num_before)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PyTree:
        self._pass_over()
        batch = next(self._data)
        self.number = (self.number or 0) + 1
        self._taken.append(self.number)
        return batch

    def is_empty(self) -> bool:
        """Return whether no batch is left that is not left out."""
        self._pass_over()
        return self._data.is_empty()

    def get_state(self) -> dict[str, Any]:
        state = self._data.get_state()
        if not self._ranges and self._rule is None:
            return state
        recent = {} if self._rule is None else self._rule.get_state()
        ranges = [list(bounds) for bounds in self._ranges]
        return {"batches": self.number or 0, "left_out": ranges, "recent": recent, "data": state}

    def set_state(self, state: dict[str, Any], /) -> None:
        self.number = None
        if isinstance(state, dict) and state.keys() == _KEYS:
            self.number = state["batches"]
            self.leave_out(state["left_out"])
            if self._rule is not None:
                self._rule.set_state(state["recent"])
            state = state["data"]
        self._data.set_state(state)

    def _pass_over(self) -> None:
        """Read the next batches without returning them, as long as they are left out."""
        while self._ranges and any(first <= (self.number or 0) + 1 <= last for first, last in self._ranges):
            if self._data.is_empty():
                return
            next(self._data)
            self.number = (self.number or 0) + 1
