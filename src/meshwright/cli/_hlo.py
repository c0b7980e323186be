"""`meshwright hlo`: write the compiled program of an experiment's step, without running it."""

import argparse
import dataclasses
from pathlib import Path

from meshwright.base._internal import join, put_at, screen_width, wrapped
from meshwright.cli._overrides import build
from meshwright.cli._target import load
from meshwright.cli._train import Result, use_fake_devices


def hlo(options: argparse.Namespace) -> Result:
    """Compile the step ahead of time, and write its HLO as text, graph and picture."""
    if options.fake_devices:
        use_fake_devices(options.fake_devices)
    from meshwright.engine import _internal as experiment
    from meshwright.program import _internal as hlo

    made = build(load(options.target), options.settings, experiment.Experiment)
    with put_at(options.to) as directory:
        ahead = experiment.compile_ahead(made)
        files = [join(options.to, Path(file).name) for file in hlo.save_hlo(ahead.compiled, directory)]
    told = {field.name: getattr(ahead, field.name) for field in dataclasses.fields(ahead)}
    del told["compiled"]
    said = wrapped(str(ahead), width=screen_width(), indent="  ")
    return "\n".join([said, *files]), {"files": files, **told}
