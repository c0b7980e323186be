"""`meshwright sample`: what the model of a run writes after a prompt, as it comes."""

import argparse
import dataclasses
import sys
from typing import Any

from meshwright.base._internal import join
from meshwright.checkpoints._internal import checkpoints_of, step_name
from meshwright.cli._checkpoint_option import checkpoint_asked
from meshwright.cli._reopened import reopened
from meshwright.cli._train import Result, made
from meshwright.cli._trust import Purpose
from meshwright.errors import EXIT_DONE, printable

PURPOSE = Purpose(
    command="sample",
    done="sampled from",
    doing="generating by",
    in_program="Another program made this run: `{command}`. Generate there: `mw.lm.generate(model, "
    "trainer.params, prompts)`.",
    without_file="Without it, in Python: `mw.lm.generate(model, params, prompts)`.",
    by_another="To generate by another function, in Python: `mw.lm.generate(model, params, prompts)`.",
    naming="{place} --by {target}",
)
_CHOSEN = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "beams")


def sample(options: argparse.Namespace) -> Result:
    """Print what the model of the newest checkpoint, of a step or of the best writes after each prompt."""
    options.target = options.by
    opened = reopened(options, PURPOSE)
    _, experiment = made(opened.target, opened.settings, opened.fake_devices, opened.check)
    from meshwright.lm._internal import texts_of_checkpoint
    from meshwright.processes import _internal as processes

    how = {"run": options.path, "checkpoint": checkpoint_asked(options), "seed": options.seed}
    decoding = _decoding(options, experiment)
    texts = texts_of_checkpoint(experiment, options.prompts, **how, decoding=decoding, stop=options.stop)
    shown = not options.json and processes.is_lead()
    rows = _written(texts, options.prompts, is_live=shown and len(options.prompts) == 1)
    if not processes.is_lead():
        return EXIT_DONE
    checkpoint = join(checkpoints_of(options.path), step_name(texts.step))
    found = {"run": options.path, "checkpoint": checkpoint, "texts": rows}
    if len(rows) == 1 and shown:
        return EXIT_DONE
    return "\n\n".join(row["prompt"] + row["text"] for row in rows), found


def _decoding(options: argparse.Namespace, experiment: Any) -> Any:
    """Return the decoding of the experiment with the changes that the options ask for."""
    from meshwright.lm._internal import Decoding, generation_in

    asked = {name: getattr(options, name) for name in _CHOSEN if getattr(options, name) is not None}
    generation = generation_in(experiment)
    known = Decoding() if generation is None else generation.decoding
    if asked.get("temperature") == 0 or asked.get("beams", 1) > 1:  # the bounds of draws have no meaning then
        known = dataclasses.replace(known, temperature=0.0, top_k=None, top_p=None, min_p=None)
    drawn = {"top_k", "top_p", "min_p"} & asked.keys()
    if drawn and known.is_greedy and "temperature" not in asked:
        asked["temperature"] = 1.0
    return dataclasses.replace(known, **asked)


def _written(texts: Any, prompts: list[str], *, is_live: bool) -> list[dict[str, Any]]:
    """Return the text of each prompt. With `is_live` it is also printed as it comes."""
    from meshwright.lm._internal import GrowingText

    rows = [{"prompt": prompt, "text": "", "tokens": []} for prompt in prompts]
    growing = [GrowingText(texts.tokenizer, texts.stops) for _ in prompts]
    if is_live:
        _print(prompts[0])
    for piece in texts.pieces:
        text = growing[piece.number]
        new = text.add(piece.tokens) + (text.rest() if piece.is_last else "")
        rows[piece.number]["text"] += new
        if is_live:
            _print(new)
        if all(text.has_ended for text in growing):
            break
    for row, text in zip(rows, growing, strict=True):
        row["tokens"] = text.tokens
    if is_live:
        _print("\n")
    return rows


def _print(text: str) -> None:
    sys.stdout.write(printable(text))
    sys.stdout.flush()
