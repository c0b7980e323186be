"""`meshwright show`: an experiment as text, and in what it differs from another. Nothing of it is run."""

import argparse
import contextlib
from typing import Any

from meshwright.cli._overrides import build
from meshwright.cli._target import load
from meshwright.cli._train import Result, use_fake_devices
from meshwright.errors import EXIT_DONE, InputError
from meshwright.storage import is_address, join, read_text

EXIT_DIFFERENT = 1


def show(options: argparse.Namespace) -> Result:
    """Describe an experiment; or compare it, with exit code 0 where nothing differs, as that of `diff`.

    Raises:
      InputError: there is nothing to compare with.
    """
    if options.fake_devices:
        use_fake_devices(options.fake_devices)
    text = _described(options.target, options.settings)
    if options.against is None:
        rows = (line.partition(" = ") for line in text.splitlines())
        return text.rstrip("\n"), {path: value for path, _, value in rows}
    name = " ".join([options.target, *(f"{key}={value}" for key, value in options.settings.items())])
    return _compared(name, text, options.against)


def _described(target: str, settings: dict[str, str]) -> str:
    from meshwright.engine import describe
    from meshwright.experiment import Experiment

    return describe(build(load(target), settings, Experiment))


def _compared(name: str, text: str, against: str) -> Result:
    from meshwright.engine import differences

    found = differences(_description(against), text)
    document: dict[str, Any] = {
        "a": against,
        "b": name,
        "different": {each.path: {"a": each.a, "b": each.b} for each in found},
    }
    lines = [f"a  {against}", f"b  {name}", "", *(f"  {each}" for each in found)]
    lines.append(f"{len(found)} values differ" if found else "nothing differs")
    return "\n".join(lines), document, EXIT_DIFFERENT if found else EXIT_DONE


def _description(place: str) -> str:
    """Return the description that a run or file holds, or that of an experiment without settings."""
    for file in (join(place, "experiment.txt"), place):
        with contextlib.suppress(OSError):
            return read_text(file)
    if ":" in place and not is_address(place):
        return _described(place, {})
    raise InputError(
        f"--against {place} cannot be read: there is no {join(place, 'experiment.txt')}, and no such file.\n"
        "  Expected a run directory, its experiment.txt, or module:function."
    )
