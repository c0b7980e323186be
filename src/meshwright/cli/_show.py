"""`meshwright show`: print an experiment's settings, or how they differ from another's; train nothing."""

import argparse
import contextlib
from typing import Any

from meshwright.base import _internal as base
from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import load_locally, use_fake_devices
from meshwright.cli._target import add_target
from meshwright.engine import _internal as engine
from meshwright.errors import EXIT_DONE, InputError

EXIT_DIFFERENT = 1


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.with_settings("show", show)
    add_target(command)
    command.add_argument(
        "--against",
        metavar="OTHER",
        help="print only the settings that differ from those of OTHER: a module:function, a run directory or "
        "its experiment.txt; exit code 1 if any do",
    )


def show(options: argparse.Namespace) -> Result:
    """Describe an experiment, or compare it with `--against`. As with Unix `diff`, 1 means a difference."""
    use_fake_devices(options.fake_devices)
    text = engine.describe(load_locally(options.target, options.settings, options.flags))
    if options.against is None:
        rows = (line.partition(" = ") for line in text.splitlines())
        return text.rstrip("\n"), {path: value for path, _, value in rows}
    name = " ".join([options.target, *(f"{key}={value}" for key, value in options.settings.items())])
    return _compared(name, text, options.against)


def _compared(name: str, text: str, against: str) -> Result:
    differences = engine.differences(_description(against), text)
    document: dict[str, Any] = {
        "a": against,
        "b": name,
        "different": {one.path: {"a": one.a, "b": one.b} for one in differences},
    }
    lines = [f"a  {against}", f"b  {name}", "", *(f"  {difference}" for difference in differences)]
    lines.append(f"{len(differences)} values differ" if differences else "nothing differs")
    return "\n".join(lines), document, EXIT_DIFFERENT if differences else EXIT_DONE


def _description(place: str) -> str:
    """Return the description stored in a run or a file, or that of the experiment of `module:function`."""
    stored = base.join(place, "experiment.txt")
    for file in (stored, place):
        with contextlib.suppress(OSError):
            return base.read_text(file)
    if ":" in place and not base.is_address(place):
        return engine.describe(load_locally(place, {}))
    raise InputError(
        f"--against {place} cannot be read: there is no {stored}, and no such file.\n"
        "  Expected a run directory, its experiment.txt, or module:function."
    )
