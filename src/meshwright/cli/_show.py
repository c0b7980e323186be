"""`meshwright show`: print an experiment's settings, or how they differ from another's; train nothing."""

import argparse
import contextlib
from typing import Any

from meshwright.base._internal import is_address, join, read_text
from meshwright.cli._overrides import build
from meshwright.cli._target import load
from meshwright.cli._train import Result, use_fake_devices
from meshwright.errors import EXIT_DONE, InputError

EXIT_DIFFERENT = 1


def show(options: argparse.Namespace) -> Result:
    """Describe an experiment, or compare it with `--against`. As with Unix `diff`, 1 means a difference."""
    if options.fake_devices:
        use_fake_devices(options.fake_devices)
    text = _described(options.target, options.settings)
    if options.against is None:
        rows = (line.partition(" = ") for line in text.splitlines())
        return text.rstrip("\n"), {path: value for path, _, value in rows}
    name = " ".join([options.target, *(f"{key}={value}" for key, value in options.settings.items())])
    return _compared(name, text, options.against)


def _described(target: str, settings: dict[str, str]) -> str:
    from meshwright.engine._internal import Experiment, describe

    return describe(build(load(target), settings, Experiment))


def _compared(name: str, text: str, against: str) -> Result:
    from meshwright.engine._internal import differences

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
    """Return the description stored in a run or a file, or that of the experiment of `module:function`."""
    for file in (join(place, "experiment.txt"), place):
        with contextlib.suppress(OSError):
            return read_text(file)
    if ":" in place and not is_address(place):
        return _described(place, {})
    raise InputError(
        f"--against {place} cannot be read: there is no {join(place, 'experiment.txt')}, and no such file.\n"
        "  Expected a run directory, its experiment.txt, or module:function."
    )
