"""`meshwright trace`: show how the time of profiled steps was spent, from the profile's files alone."""

import argparse
import dataclasses
from pathlib import Path

from meshwright.base._internal import is_address, local_copy
from meshwright.cli._train import Result
from meshwright.errors import InputError
from meshwright.observe import _internal as profile


def trace(options: argparse.Namespace) -> Result:
    """Summarize the profiles of one window of steps, one for each process."""
    with local_copy(options.path, lambda name: name.endswith(".xplane.pb")) as path:
        found = _summaries(path, options)
    document = {
        "profiles": [dataclasses.asdict(each) | {"step_seconds": each.step_seconds} for each in found]
    }
    return "\n\n".join(map(str, found)), document


def _summaries(directory: Path, options: argparse.Namespace) -> list[profile.Summary]:
    """Summarize each profile. Files copied from a store are named by their URLs there."""

    def original(text: str) -> str:
        return text.replace(str(directory), options.path.rstrip("/")) if is_address(options.path) else text

    try:
        found = [
            profile.summarize(file, depth=options.depth)
            for file in profile.find_profiles(directory, options.step)
        ]
    except InputError as error:
        raise InputError(original(str(error))) from None
    return [dataclasses.replace(each, file=original(each.file)) for each in found]
