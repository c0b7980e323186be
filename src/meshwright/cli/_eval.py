"""`meshwright eval`: the scores of a checkpoint of a run, with nothing written."""

import argparse
from typing import Any

from meshwright.base._internal import aligned, join, screen_width, wrapped
from meshwright.checkpoints._internal import checkpoints_of, step_name
from meshwright.cli._checkpoint_option import checkpoint_asked
from meshwright.cli._reopened import reopened
from meshwright.cli._train import Result, made
from meshwright.cli._trust import Purpose
from meshwright.errors import EXIT_DONE, UsageError, printable

PURPOSE = Purpose(
    command="eval",
    done="evaluated",
    doing="evaluating by",
    in_program="Another program made this run: `{command}`. Evaluate there: "
    "`trainer.evaluate(mw.Evaluation('loss', examples))` after `fit`, where a Trainer made it, else "
    "`mw.evaluate(experiment, run={place!r})`.",
    without_file="Without it, in Python: `mw.evaluate(experiment, run={place})`.",
    by_another="To evaluate by another function, in Python: `mw.evaluate(experiment, run=…)`.",
)


def eval(options: argparse.Namespace) -> Result:  # noqa: A001 - the command's name
    """Evaluate the newest checkpoint of a run, or that of a step, or the best."""
    if "workdir" in options.settings:
        raise UsageError(
            "meshwright eval takes the run as RUN, and writes nothing, so there is no workdir to set: leave "
            f"out workdir={options.settings['workdir']}."
        )
    opened = reopened(options, PURPOSE)
    _, experiment = made(opened.target, opened.settings, opened.fake_devices, opened.check)
    from meshwright.engine._internal import evaluate_checkpoint
    from meshwright.processes import _internal as processes

    outcome = evaluate_checkpoint(experiment, options.path, checkpoint_asked(options))
    if not processes.is_lead():
        return EXIT_DONE
    checkpoint = join(checkpoints_of(options.path), step_name(outcome.step))
    found = {"run": options.path, "checkpoint": checkpoint, **outcome.summary()}
    return _text(found), found


def _text(found: dict[str, Any]) -> str:
    width = screen_width()
    rows = [(printable(name, keep=""), _number(score)) for name, score in found["scores"].items()]
    head = wrapped(f"{found['checkpoint']}", width=width, indent="    ")
    table = aligned([("score", f"step {found['step']}"), *rows], right=(1,), width=width, indent="  ")
    return "\n".join([head, "", *table])


def _number(score: float | str) -> str:
    return score if isinstance(score, str) else f"{score:.6g}"
