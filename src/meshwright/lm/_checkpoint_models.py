"""A checkpoint's model: for a server, for the texts that `meshwright sample` prints, and for other programs.

Other programs get its logits, the predictions of an evaluation, or a GGUF file.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base._internal import PyTree
from meshwright.checkpoints._internal import local
from meshwright.data import _internal as tokens
from meshwright.engine._internal import (
    Experiment,
    Program,
    export,
    export_params,
    predictions_of,
    state_of_checkpoint,
)
from meshwright.errors import UsageError
from meshwright.lm._generation._decoding import Decoding
from meshwright.lm._generation._generate import stream
from meshwright.lm._generation._model import Model, logits_of
from meshwright.lm._generation._slots import Piece
from meshwright.lm._generation._text import Tokenizer, stop_sequences, tokenizer_of
from meshwright.lm._models import decoder, gguf, gpt2, t5
from meshwright.lm._models._with_cache import with_cache
from meshwright.lm._server._serve import Served
from meshwright.lm._text_samples import Generation
from meshwright.training._internal import eval_params, narrowing

Prompt = Callable[[Sequence[Any]], Sequence[int]]


def served_of_checkpoint(
    experiment: Experiment,
    name: str,
    *,
    run: str | Path | None = None,
    checkpoint: int | str | None = None,
) -> tuple[int, Served]:
    """Return the step of a checkpoint, and its model as `mw.lm.serve` takes it."""
    generation = checked_generation(experiment)
    tokenizer, (chat, ends) = tokenizer_of(generation.tokenizer), _chat_of(generation.tokenizer)
    new = tuple((end,) for end in ends if (end,) not in generation.decoding.stop)
    decoding = dataclasses.replace(generation.decoding, stop=(*generation.decoding.stop, *new))
    state = state_of_checkpoint(experiment, run, checkpoint)
    params = narrowing(experiment.compute_dtype)(eval_params(state))
    return int(state.step), Served(name, generation.model, params, tokenizer, decoding, chat)


def _chat_of(tokenizer: Any) -> tuple[Prompt | None, Sequence[int]]:
    """Return the function that makes a prompt of messages, None without a template, and the end tokens."""
    if isinstance(tokenizer, str | Path):
        directory = Path(tokenizer)
        # Runs of `meshwright tune` give the path of the file.
        directory = directory.parent if directory.name == "tokenizer.json" else directory
        template_files = (directory / name for name in ("tokenizer_config.json", "chat_template.jinja"))
        ends = tokens.end_tokens(directory) if directory.is_dir() else ()
        if not any(path.is_file() for path in template_files):
            return None, ends
        chats = tokens.chat(directory)
        # The template writes the special tokens itself.
        encode = functools.partial(chats.files.tokenizer.encode, add_special_tokens=False)
        prompt = lambda messages: encode(chats.text(messages, reply=True)).ids  # noqa: E731
        return prompt if chats.has_template else None, ends
    if getattr(tokenizer, "chat_template", None) is None:
        return None, ()
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    end = getattr(tokenizer, "eos_token_id", None)
    prompt = functools.partial(tokenizer.apply_chat_template, **options)
    return prompt, () if end is None else (end,)


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
    """Return the text of a checkpoint's model after each prompt. Collective."""
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
    """Return the generation of a run's model; an error says what the experiment lacks."""
    generation = generation_of_run(experiment)
    if generation is None:
        raise UsageError(
            "the experiment does not say how its model generates. Add to it:\n"
            "    samples=mw.lm.Generation(model, tokenizer=…)\n"
            "  where model is a mw.lm.Model, or mw.lm.without_cache(logits)."
        )
    return generation


def generation_in(experiment: Experiment) -> Generation | None:
    """Return the generation that the experiment has in `samples`, or None."""
    return experiment.samples if isinstance(experiment.samples, Generation) else None


def generation_of_run(experiment: Experiment) -> Generation | None:
    """Return the generation of a run's model, or None. A reference model needs no `samples` for it."""
    model: Any = experiment.model
    if (generation := generation_in(experiment)) is None and isinstance(model, functools.partial):
        return Generation(with_cache(model.args[0])) if model.func in _INITS and model.args else None
    return generation


def export_checkpoint(
    experiment: Experiment,
    to: str | Path,
    *,
    run: str | Path | None = None,
    checkpoint: int | str | None = None,
    evaluation: str | None = None,
    **options: Any,
) -> tuple[int, Path]:
    """Write a checkpoint's model as a program for JAX alone; return the step and the path.

    A model that generates becomes a program from tokens to the logits of the next one, as
    `mw.lm.logits_of` says. Of another run the program is `Evaluation.predict`, of any number of
    examples. The parameters are those that are evaluated, in the dtype that is computed in.
    """
    # A remote target is refused here, before anything is read.
    to = local(to)
    if to.suffix == ".gguf":
        return _as_gguf(experiment, to, run, checkpoint, options.get("context_length"))
    options.pop("context_length", None)
    describe = _program_of(experiment, evaluation)
    state = state_of_checkpoint(experiment, run, checkpoint)
    program, step = describe(state), int(state.step)
    if to.suffix == ".safetensors":
        return step, export_params(program.params, to)
    return step, export(
        program.function, program.params, program.inputs, to, constraints=program.constraints, **options
    )


def _as_gguf(
    experiment: Experiment,
    to: Path,
    run: str | Path | None,
    checkpoint: int | str | None,
    context_length: int | None,
) -> tuple[int, Path]:
    """Write a reference model for llama.cpp, with an adapter added to its weights."""
    generation = generation_of_run(experiment)
    if generation is None or generation.model.config is None:
        raise UsageError(
            "GGUF files are written of reference models, and the experiment does not say that it has one.\n"
            "  Add to it: samples=mw.lm.Generation(mw.lm.with_cache(cfg)), or call "
            "mw.lm.gguf.export_model(params, cfg, to)."
        )
    if not isinstance(generation.tokenizer, str | Path | None):
        raise UsageError(
            f"the run's tokenizer is an object, {type(generation.tokenizer).__name__}, and a GGUF file needs "
            "the files of one.\n"
            "  Give Generation the path of its folder; or, for a file without a tokenizer: "
            "mw.lm.gguf.export_model(params, cfg, to, context_length=…)."
        )
    state = state_of_checkpoint(experiment, run, checkpoint)
    plain = generation.model.plain or (lambda params: params)
    params = narrowing(experiment.compute_dtype)(plain(eval_params(state)))
    how = {"tokenizer": generation.tokenizer, "context_length": context_length}
    return int(state.step), gguf.export_model(params, generation.model.config, to, **how)


def _program_of(experiment: Experiment, evaluation: str | None) -> Callable[[Any], Program]:
    """Return the function that makes the program of a state."""
    generation = generation_of_run(experiment) if evaluation is None else None
    if generation is None:
        return predictions_of(experiment, evaluation)
    narrow, model = narrowing(experiment.compute_dtype), generation.model
    return lambda state: _logits(model, narrow(eval_params(state)))


def _logits(model: Model, params: PyTree) -> Program:
    row, inputs = "int32[batch, length]", "int32[batch, inputs]"
    shapes = row if model.encode is None else {"inputs": inputs, "lengths": "int32[batch]", "targets": row}
    limits = () if model.positions is None else (f"length <= {model.positions}",)
    return Program(logits_of(model), params, shapes, limits)
