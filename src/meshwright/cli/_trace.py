"""`meshwright trace`: where the time of a run's profile went, read from the profile alone."""

import argparse
import dataclasses
from pathlib import Path

from meshwright import profile
from meshwright.cli._train import Result
from meshwright.errors import InputError
from meshwright.storage import is_address, local_copy


def trace(options: argparse.Namespace) -> Result:
    """Tell of the profile of each process of one window.

    Raises:
      InputError: there is none, or it is damaged.
    """
    with local_copy(options.path, lambda name: name.endswith(".xplane.pb")) as path:
        found = _summaries(path, options)
    document = {
        "profiles": [dataclasses.asdict(each) | {"step_seconds": each.step_seconds} for each in found]
    }
    return "\n\n".join(map(str, found)), document


def _summaries(directory: Path, options: argparse.Namespace) -> list[profile.Summary]:
    """Return what is told of each profile; what was copied is called what it is a copy of."""

    def original(text: str) -> str:
        return text.replace(str(directory), options.path.rstrip("/")) if is_address(options.path) else text

    try:
        found = [profile.summarize(file) for file in profile.find_profiles(directory, options.step)]
    except InputError as error:
        raise InputError(original(str(error))) from None
    return [dataclasses.replace(each, file=original(each.file)) for each in found]
