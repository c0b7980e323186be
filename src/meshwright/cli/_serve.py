"""`meshwright serve`: the model of a run behind HTTP, to try it."""

import argparse
import re
import sys
from pathlib import PurePosixPath

from meshwright.cli._checkpoint_option import checkpoint_asked
from meshwright.cli._reopened import reopened
from meshwright.cli._train import Result, made
from meshwright.cli._trust import Purpose
from meshwright.errors import EXIT_DONE

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


def serve(options: argparse.Namespace) -> Result:
    """Serve the newest checkpoint of a run, or that of a step, or the best, until SIGTERM or Ctrl-C."""
    options.target = options.by
    opened = reopened(options, PURPOSE)
    _, experiment = made(opened.target, opened.settings, opened.fake_devices, opened.check)
    from meshwright.lm._internal import Limits, serve, served_of_checkpoint

    name = options.name or PurePosixPath(re.sub(r"[^\w./-]", "-", options.path)).name or "model"
    step, served = served_of_checkpoint(
        experiment, name, run=options.path, checkpoint=checkpoint_asked(options)
    )
    limits = Limits(slots=options.slots, length=options.length, max_waiting=options.max_waiting)

    def on_ready(url: str) -> None:
        print(f"serving {name}, step {step}, at {url}: a page, and OpenAI's protocol at {url}/v1", flush=True)

    print("  compiling", file=sys.stderr)
    serve(served, limits, host=options.host, port=options.port, on_ready=on_ready)
    print("stopped", file=sys.stderr)
    return EXIT_DONE
