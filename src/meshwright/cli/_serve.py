"""`meshwright serve`: the model of a run behind HTTP, to try it."""

import argparse
import re
import sys
from pathlib import PurePosixPath

from meshwright.cli._checkpoint import add_which, checkpoint_asked
from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import load_experiment
from meshwright.cli._reopened import STARTED_FROM, recipe_of_run
from meshwright.cli._trust import Purpose
from meshwright.errors import EXIT_DONE
from meshwright.lm import _internal as lm

PURPOSE = Purpose(
    command="serve",
    done="served",
    doing="serving by",
    in_program="Another program made this run: `{command}`. Serve there: `mw.lm.serve(mw.lm.Served("
    "name, model, trainer.params, tokenizer))`.",
    without_file="Without it, in Python: `mw.lm.serve(mw.lm.Served(…))`.",
    by_another="To serve by another function, in Python: `mw.lm.serve(mw.lm.Served(…))`.",
    naming="{place} --by {target}",
)


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add(
        "serve",
        serve,
        calls_user=True,
    )
    command.add_argument("path", metavar="RUN", help="the directory or URL of the run, also while it trains")
    command.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to listen at (default: 127.0.0.1, which other machines do not reach)",
    )
    command.add_argument(
        "--port", type=int, default=8000, metavar="N", help="the port; 0 for any (default: 8000)"
    )
    command.add_argument("--name", metavar="NAME", help="the model's name for clients (default: that of RUN)")
    command.add_argument(
        "--slots", type=int, default=8, metavar="N", help="generate N texts at the same time (default: 8)"
    )
    command.add_argument(
        "--length",
        type=int,
        default=1024,
        metavar="N",
        help="tokens of a prompt and its answer (default: 1024)",
    )
    command.add_argument(
        "--max-waiting",
        type=int,
        default=256,
        metavar="N",
        help="refuse requests when N texts wait (default: 256)",
    )
    command.add_argument("--by", dest="target", **STARTED_FROM)
    add_which(command, "serve")


def serve(options: argparse.Namespace) -> Result:
    """Serve the newest checkpoint of a run, or that of a step, or the best, until SIGTERM or Ctrl-C."""
    _, experiment = load_experiment(recipe_of_run(options, PURPOSE))
    name = options.name or PurePosixPath(re.sub(r"[^\w./-]", "-", options.path)).name or "model"
    step, served = lm.served_of_checkpoint(
        experiment, name, run=options.path, checkpoint=checkpoint_asked(options)
    )
    limits = lm.Limits(slots=options.slots, length=options.length, max_waiting=options.max_waiting)

    def on_ready(url: str) -> None:
        print(f"serving {name}, step {step}, at {url}: a page, and OpenAI's protocol at {url}/v1", flush=True)

    print("  compiling", file=sys.stderr)
    lm.serve(served, limits, host=options.host, port=options.port, on_ready=on_ready)
    print("stopped", file=sys.stderr)
    return EXIT_DONE
