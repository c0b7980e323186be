"""`meshwright trace`: show how the time of profiled steps was spent, from the profile's files alone."""

import argparse
from pathlib import Path

from meshwright.base import _internal as base
from meshwright.cli._parser import Commands, Result
from meshwright.errors import InputError
from meshwright.observe import _internal as observe


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add("trace", trace)
    command.add_argument("path", metavar="RUN", help="a run, a directory of profiles, or an .xplane.pb file")
    command.add_argument(
        "--step", type=int, metavar="N", help="show the profile that begins at step N (default: the newest)"
    )
    command.add_argument(
        "--depth",
        type=int,
        default=2,
        metavar="N",
        help="tell apart N scopes of the model, one inside the other (default: 2)",
    )


def trace(options: argparse.Namespace) -> Result:
    """Summarize the profiles of one window of steps, one for each process."""
    import dataclasses

    with base.local_copy(options.path, lambda name: name.endswith(".xplane.pb")) as path:
        summaries = _summaries(path, options)
    profiles = [dataclasses.asdict(summary) | {"step_seconds": summary.step_seconds} for summary in summaries]
    return "\n\n".join(map(str, summaries)), {"profiles": profiles}


def _summaries(directory: Path, options: argparse.Namespace) -> "list[observe.Summary]":
    """Summarize each profile. Files copied from a store are named by their URLs there."""
    import dataclasses

    def original(text: str) -> str:
        is_copied = base.is_address(options.path)
        return text.replace(str(directory), options.path.rstrip("/")) if is_copied else text

    try:
        files = observe.find_profiles(directory, options.step)
        summaries = [observe.summarize(file, depth=options.depth) for file in files]
    except InputError as error:
        raise InputError(original(str(error))) from None
    return [dataclasses.replace(summary, file=original(summary.file)) for summary in summaries]
