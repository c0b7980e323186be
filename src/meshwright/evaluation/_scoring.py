"""All that is found of a state over some examples, whatever described it."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from meshwright.evaluation._files import OutputFiles
from meshwright.evaluation._look import Look, looking
from meshwright.evaluation._means import Scores
from meshwright.evaluation._metric import Metric
from meshwright.train import nothing


class Scoring:
    """The scores of a state over some examples, the same on all processes. Collective.

    Args:
      mean: `(state, batches) -> scores` averages over the examples: a `Measured`, a `LossOver`; or None.
      read: Returns the batches of all examples, as `mean` takes them.
      metric: Makes scores of everything at once, if anything does.
      outputs: Keeps what is made of each example, if anything does.
      num_examples: How many there are, if that is known.
      check: Tries on structs of the state what can be, and returns the names of the averages; None if they
        are known only with a state.
      accept: Is told the names of all scores, once they are known.
    """

    def __init__(
        self,
        mean: Callable[[Any, Iterable[Any]], Scores] | None,
        read: Callable[[], Iterator[Any]],
        metric: Metric | None,
        *,
        outputs: OutputFiles | None = None,
        num_examples: int | None = None,
        check: Callable[[Any], Sequence[str] | None] = lambda target: None,
        accept: Callable[[Sequence[str]], None] = lambda names: None,
    ):
        self._mean, self._read, self._metric, self._outputs = mean, read, metric, outputs
        self._check, self._accept = check, accept
        self.num_examples = num_examples
        self.names: tuple[str, ...] | None = None
        """The names of the scores, once they are known."""

    def __call__(
        self, state: Any, step: int = 0, directory: Path | None = None, look: Look = nothing
    ) -> Scores:
        """Return the scores over all examples; files go to `directory`, if there is one.

        Raises:
          LeftOff: `look`, which is called before each batch, raises it.
        """
        scores = self._scores(state, look, is_trial=False)
        if self._outputs is not None and directory is not None:
            self._outputs(directory, step, state, look)
        return scores

    def check(self, target: Any) -> bool:
        """Try what can be tried on structs of the state, and return whether there was anything.

        Raises:
          UsageError: Something does not fit.
        """
        names = self._check(target)
        if names is not None and self._metric is None:
            self._know(names)
        return names is not None

    def first(self, state: Any) -> Scores:
        """Return the scores over the first examples, as many as are computed at a time.

        Raises:
          UsageError: Something does not fit.
        """
        found = self._scores(state, nothing, is_trial=True)
        self._know(list(found))
        return found

    def _scores(self, state: Any, look: Look, *, is_trial: bool) -> Scores:
        scores: Scores = {}
        if self._mean is not None:
            scores = self._mean(state, looking(itertools.islice(self._read(), 1 if is_trial else None), look))
        if self._metric is None:
            return scores
        return scores | self._metric(state, scores, look, is_trial=is_trial)

    def _know(self, names: Sequence[str]) -> None:
        self._accept(names)
        self.names = tuple(names)
