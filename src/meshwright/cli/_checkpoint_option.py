"""The checkpoint that the options `--step N` and `--best [SCORE]` ask for."""

import argparse

from meshwright.checkpoints._internal import chosen_step


def checkpoint_asked(options: argparse.Namespace) -> int | str:
    """Return the checkpoint as `checkpoint.chosen_step` takes it."""
    if options.best is not None:
        return f"best:{options.best}" if options.best else "best"
    return "newest" if options.step is None else options.step


def step_asked(options: argparse.Namespace, path: str) -> int | None:
    """Return the step of the checkpoint below `path`; None if the options do not say which."""
    return options.step if options.best is None else chosen_step(path, checkpoint_asked(options))
