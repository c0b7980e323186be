"""`meshwright hlo`: write the compiled program of an experiment's step, without running it."""

import argparse
from pathlib import Path

from meshwright.base import _internal as base
from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import load_locally, use_fake_devices
from meshwright.cli._target import add_target
from meshwright.plan import _internal as plan
from meshwright.program import _internal as program


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.with_settings("hlo", hlo)
    add_target(command)
    command.add_argument(
        "--to",
        metavar="DIR",
        required=True,
        help="directory or URL to write to: the HLO as text, its graph as DOT and SVG",
    )


def hlo(options: argparse.Namespace) -> Result:
    """Compile the step ahead of time, and write its HLO as text, graph and picture."""
    import dataclasses

    use_fake_devices(options.fake_devices)
    experiment = load_locally(options.target, options.settings, options.flags)
    with base.put_at(options.to) as directory:
        ahead = plan.compile_ahead(experiment)
        names = [Path(file).name for file in program.save_hlo(ahead.compiled, directory)]
    files = [base.join(options.to, name) for name in names]
    document = {field.name: getattr(ahead, field.name) for field in dataclasses.fields(ahead)}
    del document["compiled"]
    summary = base.wrapped(str(ahead), width=base.screen_width(), indent="  ")
    return "\n".join([summary, *files]), {"files": files, **document}
