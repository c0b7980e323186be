"""The options that choose a checkpoint, `--step N` and `--best [SCORE]`, and the checkpoint they ask for."""

import argparse
from pathlib import Path
from typing import Any

from meshwright.base import _internal as base
from meshwright.checkpoints import _internal as checkpoints
from meshwright.errors import UsageError


def add_step(command: argparse._ActionsContainer, verb: str) -> None:
    """Add the option that chooses a checkpoint by its step."""
    command.add_argument(
        "--step", type=int, metavar="N", help=f"{verb} the checkpoint of step N (default: the newest)"
    )


def add_which(command: argparse.ArgumentParser, verb: str) -> None:
    """Add the options that choose a checkpoint."""
    which = command.add_mutually_exclusive_group()
    add_step(which, verb)
    which.add_argument(
        "--best",
        action=_Best,
        nargs="?",
        const="",
        metavar="SCORE",
        help=f"{verb} the best checkpoint, by SCORE (test/loss) or, if none is given, by the score that "
        "the run keeps its best by; SCORE:min or SCORE:max says which values are best, if nothing else does",
    )


class _Best(argparse.Action):
    """Stores the score after `--best`. If the user wrote the run there, the error says so."""

    def __call__(self, parser: Any, options: Any, value: Any, option: str | None = None) -> None:
        has_run = any(getattr(options, name, None) for name in ("path", "source"))
        if not has_run and value and ("://" in value or Path(value).is_dir()):
            raise UsageError(
                f"{parser.prog} --best takes the name of a score, and {value} is a directory.\n"
                f"  Write the directory first: `{parser.prog} {value} --best`."
            )
        setattr(options, self.dest, value)


def checkpoint_asked(options: argparse.Namespace) -> int | str:
    """Return the checkpoint as `chosen_step` of `checkpoints` takes it."""
    if options.best is not None:
        return f"best:{options.best}" if options.best else "best"
    return "newest" if options.step is None else options.step


def step_asked(options: argparse.Namespace, path: str) -> int | None:
    """Return the step of the checkpoint below `path`; None if the options do not say which."""
    return options.step if options.best is None else checkpoints.chosen_step(path, checkpoint_asked(options))


def path_of_step(run: str, step: int) -> str:
    """Return the path or URL of a run's checkpoint."""
    return base.join(checkpoints.checkpoints_of(run), checkpoints.step_name(step))
