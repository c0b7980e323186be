"""A checkpoint's model, ready to be served."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from meshwright.data import _internal as tokens
from meshwright.engine._internal import Experiment, state_of_checkpoint
from meshwright.lm._generation._text import tokenizer_of
from meshwright.lm._runs._texts import checked_generation
from meshwright.lm._server._serve import Served
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
        directory = directory.parent if directory.name == "tokenizer.json" else directory  # as in runs of `meshwright tune`
        template_files = (directory / name for name in ("tokenizer_config.json", "chat_template.jinja"))
        ends = tokens.end_tokens(directory) if directory.is_dir() else ()
        if not any(path.is_file() for path in template_files):
            return None, ends
        chats = tokens.chat(directory)
        encode = functools.partial(
            chats.files.tokenizer.encode, add_special_tokens=False
        )  # the template writes them
        prompt = lambda messages: encode(chats.text(messages, reply=True)).ids  # noqa: E731
        return prompt if chats.has_template else None, ends
    if getattr(tokenizer, "chat_template", None) is None:
        return None, ()
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    end = getattr(tokenizer, "eos_token_id", None)
    prompt = functools.partial(tokenizer.apply_chat_template, **options)
    return prompt, () if end is None else (end,)
