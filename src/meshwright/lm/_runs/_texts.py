"""What a checkpoint's model writes: texts for prompts, as `meshwright sample` prints them."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.engine._internal import Experiment, state_of_checkpoint
from meshwright.errors import UsageError
from meshwright.lm._generation._decoding import Decoding
from meshwright.lm._generation._slots import Piece
from meshwright.lm._generation._stream import stream
from meshwright.lm._generation._text import Tokenizer, stop_sequences, tokenizer_of
from meshwright.lm._models import decoder, gpt2, t5
from meshwright.lm._models._with_cache import with_cache
from meshwright.lm._runs._generation import Generation
from meshwright.training._internal import eval_params, narrowing

_INITS = (decoder.init, gpt2.init, t5.init)


@dataclass(frozen=True)
class Texts:
    """The tokens that a model writes, as they come, and its tokenizer."""

    step: int
    """The step of the checkpoint."""
    tokenizer: Tokenizer
    """The tokenizer of the run."""
    pieces: Iterator[Piece]
    """The new tokens; see `mw.lm.stream`."""
    stops: tuple[str, ...] = ()
    """Texts after which a result ends; they may come in other tokens than those at which `pieces` end."""


def texts_of_checkpoint(
    experiment: Experiment,
    prompts: Sequence[str],
    *,
    run: str | Path | None = None,
    checkpoint: int | str | None = None,
    decoding: Decoding | None = None,
    stop: Sequence[str] = (),
    seed: int = 0,
    every: int = 4,
) -> Texts:
    """Return what the model of a checkpoint writes after each prompt. Collective."""
    generation = checked_generation(experiment)
    tokenizer = tokenizer_of(generation.tokenizer)
    encoded = [list(tokenizer.encode(prompt)) for prompt in prompts]
    decoding = generation.decoding if decoding is None else decoding
    if stop:
        ends = stop_sequences(tokenizer, stop)
        decoding = dataclasses.replace(decoding, stop=tuple(dict.fromkeys((*decoding.stop, *ends))))
    state = state_of_checkpoint(experiment, run, checkpoint)
    params = narrowing(experiment.compute_dtype)(eval_params(state))
    pieces = stream(
        generation.model, params, encoded, decoding, seed=seed, slots=max(1, len(encoded)), every=every
    )
    return Texts(int(state.step), tokenizer, pieces, () if generation.tokenizer is None else tuple(stop))


def checked_generation(experiment: Experiment) -> Generation:
    """Return how a run's model generates."""
    generation = generation_of_run(experiment)
    if generation is None:
        raise UsageError(
            "the experiment does not say how its model generates. Add to it:\n"
            "    samples=mw.lm.Generation(model, tokenizer=…)\n"
            "  where model is a mw.lm.Model, or mw.lm.without_cache(logits)."
        )
    return generation


def generation_in(experiment: Experiment) -> Generation | None:
    """Return how a run's model generates, if the experiment says so."""
    return experiment.samples if isinstance(experiment.samples, Generation) else None


def generation_of_run(experiment: Experiment) -> Generation | None:
    """Return how a run's model generates, if it is known: a reference model does without a tokenizer."""
    model: Any = experiment.model
    if (generation := generation_in(experiment)) is None and isinstance(model, functools.partial):
        return Generation(with_cache(model.args[0])) if model.func in _INITS and model.args else None
    return generation
