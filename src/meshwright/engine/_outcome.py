"""The outcome of a run, as a value."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.base._internal import documented, number
from meshwright.observe._internal import json_number
from meshwright.training._internal import TrainState


@documented
@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: its last step and state, its scores, and the time that it took.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> state = mw.training.state_from({"w": jnp.ones(2)}, optax.sgd(0.1), 0, layout)
      >>> mw.engine.Outcome(step=100, scores={"test/loss": 0.5}, seconds=2.0, state=state).summary()
      {'step': 100, 'scores': {'test/loss': 0.5}, 'seconds': 2.0}
    """

    step: int
    """The number of updates, including those of earlier attempts."""
    scores: Mapping[str, float]
    """The newest scores: those after the last step, except for evaluations that are not made `at_end`."""
    seconds: float
    """The seconds that this process trained and evaluated, without compiling the step and restoring."""
    state: TrainState
    """The state after the last update."""

    def summary(self) -> dict[str, Any]:
        """Return everything except the state, as values that strict JSON can hold."""
        scores = {name: json_number(score) for name, score in self.scores.items()}
        return {"step": self.step, "scores": scores, "seconds": self.seconds}

    def _repr_html_(self) -> str:
        """Return a table of the step, the scores and the seconds, which a notebook shows."""
        rows = {"step": str(self.step), **{name: number(score) for name, score in self.scores.items()}}
        rows["seconds"] = number(self.seconds)
        cells = (f"<tr><th>{html.escape(name)}</th><td>{text}</td></tr>" for name, text in rows.items())
        return f"<table>{''.join(cells)}</table>"
