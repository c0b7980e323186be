"""`Generation`: what a run's model writes, for the run's page and for `meshwright sample`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from meshwright.base._internal import documented, explained_as
from meshwright.engine._policies import InformedWhen, is_informed
from meshwright.engine._types import check_types
from meshwright.errors import UsageError
from meshwright.lm._internal import GREEDY, Decoding, Model
from meshwright.processes._internal import When


@explained_as("engine.Generation")
@documented
@dataclass(frozen=True)
class Generation:
    """How the model of a run generates. With `prompts`, what it writes is shown on the run's page.

    Raises:
      UsageError: A field has a wrong type.

    Example:
      >>> cfg = mw.lm.decoder.Config(vocabulary=256)
      >>> generation = mw.engine.Generation(
      ...     mw.lm.with_cache(cfg), tokenizer=mw.lm.Bytes(), prompts=("Once",)
      ... )
      >>> generation.when
      500
    """

    is_known_by_place: ClassVar[bool] = True

    model: Model
    """The model as `mw.lm.generate` takes it, such as `mw.lm.with_cache(cfg)`."""
    tokenizer: Any = None
    """An object with `encode` and `decode`, or the path of a `tokenizer.json` or of its directory. None for
    texts of numbers, the tokens themselves."""
    prompts: Sequence[str] = ()
    """The prompts whose continuations are written to `outputs/generation/step_00000100.jsonl` in the run
    directory and shown on its page. Their mean number of tokens is the score `generation/tokens`."""
    decoding: Decoding = GREEDY
    """How tokens are chosen, and when a text ends."""
    when: int | When | InformedWhen = 500
    """The steps after which to generate, as in `Evaluation.when`; and after the last step."""

    def __post_init__(self) -> None:
        check_types(self)
        is_informed(self.when)  # raises if it is not a policy
        if isinstance(self.prompts, str):
            raise UsageError(f"Generation.prompts is one text: give a list, [{self.prompts!r}].")
