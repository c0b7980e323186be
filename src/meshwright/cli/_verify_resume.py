"""`meshwright verify-resume`: proves that an experiment that is killed and continued gives the same bits.

Each run is a process of the same command, with `--child` and what it is to do as JSON.
"""

import argparse
import json

from meshwright.cli._target import as_module
from meshwright.cli._train import Result, made
from meshwright.errors import EXIT_DONE, EXIT_FAILED


def verify_resume(options: argparse.Namespace) -> Result:
    """Run, kill, continue and compare an experiment. Exit code 1 if the runs differ."""
    target = as_module(options.target)
    if options.child is not None:
        return _child(target, options)
    from meshwright.debug import _internal as replay

    found = replay.verify_resume(
        target,
        options.settings,
        steps=options.steps,
        seed=options.seed,
        fake_devices=options.fake_devices,
    )
    return str(found), found.document(), EXIT_DONE if found.is_equal else EXIT_FAILED


def _child(target: str, options: argparse.Namespace) -> int:
    orders = json.loads(options.child)
    settings = {**options.settings, "workdir": orders["workdir"]}
    _, experiment = made(target, settings, options.fake_devices, None)
    from meshwright.debug import _internal as replay

    replay.play(experiment, replay.Orders(**orders))
    return EXIT_DONE
