"""All commands, in the order in which `--help` shows them."""

from meshwright._version import __version__
from meshwright.cli import (
    _completion,
    _convert,
    _demo,
    _diff,
    _doctor,
    _eval,
    _export,
    _hlo,
    _init,
    _inspect,
    _launch,
    _nan,
    _pin,
    _plan,
    _report,
    _resume,
    _runs,
    _sample,
    _serve,
    _show,
    _trace,
    _train,
    _tune,
    _verify,
    _verify_resume,
)
from meshwright.cli._parser import Commands, Parser

FILES = (
    _init,
    _completion,
    _demo,
    _train,
    _resume,
    _tune,
    _eval,
    _show,
    _sample,
    _export,
    _serve,
    _plan,
    _inspect,
    _report,
    _runs,
    _trace,
    _hlo,
    _nan,
    _verify_resume,
    _verify,
    _diff,
    _convert,
    _pin,
    _doctor,
    _launch,
)
"""The file of each command has `add`, which adds its parser and options, and the function that it runs."""


def grammar() -> Commands:
    """Return the parsers. Each command sets `run`: a function from the options to a result."""
    top = Parser(
        prog="meshwright",
        description="Train, checkpoint, evaluate and inspect any JAX model, on one device or thousands.",
        epilog="exit codes: 0 done, 1 failed, 2 wrong usage (nothing was started), 3 input missing or "
        "damaged, 4 diverged, 5 hung, 6 another process of the run is gone (start the command again), "
        "75 stopped with the state saved (start the command again), 130 Ctrl-C",
    )
    top.add_argument("--version", action="version", version=f"meshwright {__version__}")
    commands = Commands(top)
    for file in FILES:
        file.add(commands)
    return commands
