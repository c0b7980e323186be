"""`meshwright eval`: the scores of a checkpoint of a run, with nothing written."""

import argparse
from typing import Any

from meshwright.base import _internal as base
from meshwright.cli._checkpoint import add_which, checkpoint_asked, path_of_step
from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import load_experiment
from meshwright.cli._reopened import STARTED_FROM, recipe_of_run, refuse_workdir
from meshwright.cli._trust import Purpose
from meshwright.engine import _internal as engine
from meshwright.errors import EXIT_DONE, printable
from meshwright.processes import _internal as processes

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


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.with_settings(
        "eval",
        eval,
    )
    command.add_argument("path", metavar="RUN", help="the directory or URL of the run, also while it trains")
    command.add_argument("target", nargs="?", **STARTED_FROM)
    add_which(command, "evaluate")


def eval(options: argparse.Namespace) -> Result:  # noqa: A001 - the command's name
    """Evaluate the newest checkpoint of a run, or that of a step, or the best."""
    refuse_workdir(options)
    _, experiment = load_experiment(recipe_of_run(options, PURPOSE))
    outcome = engine.evaluate_checkpoint(experiment, options.path, checkpoint_asked(options))
    if not processes.is_lead():
        return EXIT_DONE
    checkpoint = path_of_step(options.path, outcome.step)
    document = {"run": options.path, "checkpoint": checkpoint, **outcome.summary()}
    return _text(document), document


def _text(document: dict[str, Any]) -> str:
    width = base.screen_width()
    rows = [
        (printable(name, keep=""), score if isinstance(score, str) else f"{score:.6g}")
        for name, score in document["scores"].items()
    ]
    head = base.wrapped(f"{document['checkpoint']}", width=width, indent="    ")
    table = base.aligned([("score", f"step {document['step']}"), *rows], right=(1,), width=width, indent="  ")
    return "\n".join([head, "", *table])
