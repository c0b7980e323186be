"""The options of `meshwright sample`."""

from typing import Any

from meshwright.cli._checkpoint_commands import add_which
from meshwright.cli._parser import Commands

_NUMBERS: tuple[tuple[str, type, str, str], ...] = (
    ("--max-new-tokens", int, "N", "end each text after N tokens"),
    ("--temperature", float, "T", "divide the logits by T before a token is drawn; 0 takes the most likely"),
    ("--top-k", int, "K", "draw from the K most likely tokens"),
    ("--top-p", float, "P", "draw from the most likely tokens that together have probability P"),
    ("--min-p", float, "P", "draw from tokens with at least P times the highest probability"),
    ("--repetition-penalty", float, "X", "make tokens that the text has already less likely, if above 1"),
    ("--beams", int, "N", "search with N beams instead of drawing"),
)


def add_sample(commands: Commands) -> None:
    """Add the command."""
    sample = commands.add(
        "sample", "_sample", "Print what the model of a run writes after a prompt, as it comes."
    )
    sample.add_argument("path", metavar="RUN", help="the directory or URL of the run, also while it trains")
    sample.add_argument(
        "prompts",
        metavar="PROMPT",
        nargs="+",
        help="the text to begin with, or tokens such as '5 12' if the run has no tokenizer; several are "
        "printed when all have ended",
    )
    for option, kind, metavar, said in _NUMBERS:
        how: dict[str, Any] = {"type": kind, "metavar": metavar}
        sample.add_argument(option, help=f"{said} (default: as the experiment says)", **how)
    sample.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end after this text; may be repeated"
    )
    sample.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of the draws (default: 0)")
    sample.add_argument(
        "--by",
        metavar="module:function",
        help="the function that the run was started from; needed only if other users can write to RUN",
    )
    add_which(sample, "use")
