"""What the processes of a `fit` say of it before they train."""

from collections.abc import Mapping
from typing import Any

import jax

from meshwright import process
from meshwright.engine import settings_of
from meshwright.input import facts_of, is_indexed
from meshwright.trainer._epochs import Epochs

_NO_SETTINGS = ("self", "deployer", "last_ckpt_info")


def settings_among(given: Mapping[str, Any]) -> dict[str, str]:
    """Return, by path, what must be the same on all processes of what a function was given.

    With one process there is nothing to say. No array is kept.
    """
    if jax.process_count() == 1:
        return {}
    return settings_of({name: value for name, value in given.items() if name not in _NO_SETTINGS})


def compare_fit(settings: Mapping[str, str], data: Epochs, eval_examples: Any) -> None:
    """Compare the settings of a run, then the examples to train on and those to evaluate on. Collective.

    Raises:
      UsageError: they differ.
    """
    process.compare("the settings of the trainer", lambda: settings)
    process.compare("the examples", lambda: _said(data, eval_examples))


def _said(data: Epochs, eval_examples: Any) -> dict[str, str]:
    evaluated = facts_of(eval_examples) if is_indexed(eval_examples) else {}
    read = {"train_examples": data.facts(), "eval_examples": evaluated}
    return {f"{place}: {name}": said for place, facts in read.items() for name, said in facts.items()}
