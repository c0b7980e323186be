"""`meshwright sample`: what the model of a run writes after a prompt, as it comes."""

import argparse
import sys
from typing import Any

from meshwright.cli._checkpoint import add_which, checkpoint_asked, path_of_step
from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import load_experiment
from meshwright.cli._reopened import STARTED_FROM, recipe_of_run
from meshwright.cli._trust import Purpose
from meshwright.errors import EXIT_DONE, printable
from meshwright.lm import _internal as lm
from meshwright.processes import _internal as processes

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
_NUMBERS: tuple[tuple[str, type, str, str], ...] = (
    ("--max-new-tokens", int, "N", "end each text after N tokens"),
    ("--temperature", float, "T", "divide the logits by T before a token is drawn; 0 takes the most likely"),
    ("--top-k", int, "K", "draw from the K most likely tokens"),
    ("--top-p", float, "P", "draw from the most likely tokens that together have probability P"),
    ("--min-p", float, "P", "draw from tokens with at least P times the highest probability"),
    ("--repetition-penalty", float, "X", "make tokens that the text has already less likely, if above 1"),
    ("--beams", int, "N", "search with N beams instead of drawing"),
)


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add(
        "sample",
        sample,
        calls_user=True,
    )
    command.add_argument("path", metavar="RUN", help="the directory or URL of the run, also while it trains")
    command.add_argument(
        "prompts",
        metavar="PROMPT",
        nargs="+",
        help="the text to begin with, or tokens such as '5 12' if the run has no tokenizer; several are "
        "printed when all have ended",
    )
    for option, kind, metavar, summary in _NUMBERS:
        how: dict[str, Any] = {"type": kind, "metavar": metavar}
        command.add_argument(option, help=f"{summary} (default: as the experiment says)", **how)
    command.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end after this text; may be repeated"
    )
    command.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the seed of the draws (default: 0)"
    )
    command.add_argument("--by", dest="target", **STARTED_FROM)
    add_which(command, "use")


def sample(options: argparse.Namespace) -> Result:
    """Print what the model of the newest checkpoint, of a step or of the best writes after each prompt."""
    _, experiment = load_experiment(recipe_of_run(options, PURPOSE))
    how = {"run": options.path, "checkpoint": checkpoint_asked(options), "seed": options.seed}
    decoding = _decoding(options, experiment)
    texts = lm.texts_of_checkpoint(experiment, options.prompts, **how, decoding=decoding, stop=options.stop)
    shown = not options.json and processes.is_lead()
    rows = _written(texts, options.prompts, is_live=shown and len(options.prompts) == 1)
    if not processes.is_lead():
        return EXIT_DONE
    document = {"run": options.path, "checkpoint": path_of_step(options.path, texts.step), "texts": rows}
    if len(rows) == 1 and shown:
        return EXIT_DONE
    return "\n\n".join(row["prompt"] + row["text"] for row in rows), document


def _decoding(options: argparse.Namespace, experiment: Any) -> Any:
    """Return the decoding of the experiment with the changes that the options ask for."""
    import dataclasses

    names = [option.removeprefix("--").replace("-", "_") for option, *_ in _NUMBERS]
    changes = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    generation = lm.generation_in(experiment)
    decoding = lm.Decoding() if generation is None else generation.decoding
    if changes.get("temperature") == 0 or changes.get("beams", 1) > 1:  # bounds of draws have no meaning then
        decoding = dataclasses.replace(decoding, temperature=0.0, top_k=None, top_p=None, min_p=None)
    drawn = {"top_k", "top_p", "min_p"} & changes.keys()
    if drawn and decoding.is_greedy and "temperature" not in changes:
        changes["temperature"] = 1.0
    return dataclasses.replace(decoding, **changes)


def _written(texts: Any, prompts: list[str], *, is_live: bool) -> list[dict[str, Any]]:
    """Return the text of each prompt. With `is_live` it is also printed as it comes."""
    rows = [{"prompt": prompt, "text": "", "tokens": []} for prompt in prompts]
    growing = [lm.GrowingText(texts.tokenizer, texts.stops) for _ in prompts]
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
