"""`meshwright trace`: where the time of a run's profile went, read from the profile alone."""

import argparse
import dataclasses

from meshwright import profiling
from meshwright.cli._train import Result


def trace(options: argparse.Namespace) -> Result:
    """Tell of the profile of each process of one window.

    Raises:
      InputError: there is none, or it is damaged.
    """
    files = profiling.find_profiles(options.path, options.step)
    found = [profiling.summarize(file) for file in files]
    document = {
        "profiles": [dataclasses.asdict(each) | {"step_seconds": each.step_seconds} for each in found]
    }
    return "\n\n".join(map(str, found)), document
