"""`meshwright nan`: where the first value of a run that is not finite comes from."""

import argparse

from meshwright.cli._reopened import reopened
from meshwright.cli._train import Result, made
from meshwright.cli._trust import Purpose
from meshwright.errors import EXIT_DIVERGED, EXIT_DONE, UsageError

PURPOSE = Purpose(
    command="nan",
    done="played again",
    doing="playing again",
    in_program="Another program made this run: `{command}`. Call `mw.debug.first_nan(experiment, "
    "run={place!r})` there.",
    without_file="Without it, in Python: `mw.debug.first_nan(experiment, run={place})`.",
    by_another="To play it by another function, in Python: `mw.debug.first_nan(experiment, run=…)`.",
)


def nan(options: argparse.Namespace) -> Result:
    """Play a run again from its newest checkpoint to the first step whose result is not finite.

    Exit code 4 if there is such a step.
    """
    if "workdir" in options.settings:
        raise UsageError(
            "meshwright nan takes the run as RUN, so there is no workdir to set: leave out "
            f"workdir={options.settings['workdir']}."
        )
    opened = reopened(options, PURPOSE)
    _, experiment = made(opened.target, opened.settings, opened.fake_devices, opened.check)
    from meshwright.debug._internal import first_nan

    found = first_nan(experiment, options.path, until=options.step, to=options.to)
    if found is None:
        return "every step is finite", {"first_nan": None}, EXIT_DONE
    return str(found), found.document(), EXIT_DIVERGED
