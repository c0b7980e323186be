"""`meshwright plan`: estimate a step on hardware that this machine does not have.

Compilers of accelerators kill their own process on some errors. So the compiler runs in a child process,
which builds the experiment again and writes what it found to a file.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.base._internal import screen_width, wrapped
from meshwright.cli._overrides import build
from meshwright.cli._target import load
from meshwright.cli._train import Result, use_fake_devices
from meshwright.errors import EXIT_DONE, EXIT_FAILED, UsageError

if TYPE_CHECKING:
    from meshwright.plan._internal import Compiled, Hardware, Plan, Settings, Site


def plan(options: argparse.Namespace) -> Result:
    """Plan the experiment's step. Exit code 1 if it does not fit into the memory."""
    if options.search and "mesh" in options.settings:
        raise UsageError(
            f"mesh={options.settings['mesh']} has no effect with --search, which tries all meshes that the "
            "devices can have. Leave out one of the two."
        )
    os.environ["JAX_PLATFORMS"] = "cpu"  # set before JAX loads, so that it does not look for accelerators
    from meshwright.plan import _internal as planning

    hardware = planning.hardware_named(options.on)
    if hardware.chip.target is None:
        use_fake_devices(hardware.num_devices)
    site = _site(options, hardware)
    if options.compile_to:
        made = planning.changed(site.experiment, json.loads(options.changes))
        site = dataclasses.replace(site, experiment=made)
        Path(options.compile_to).write_text(json.dumps(dataclasses.asdict(site.compile())), encoding="utf-8")
        return EXIT_DONE
    if options.search:
        return _searched(site, options)
    return _told(site, planning.planned(site, None if options.traced else lambda: _compiled(options, {})))


def _site(options: argparse.Namespace, hardware: "Hardware") -> "Site":
    from meshwright.engine import _internal as experiment
    from meshwright.plan import _internal as planning

    made = build(load(options.target), options.settings, experiment.Experiment)
    return planning.site_of(made, hardware, bandwidth=options.bandwidth * 1e9)


def _compiled(options: argparse.Namespace, changes: "Settings") -> "Compiled":
    """Return the result of a compiler that ran in a child process, with some changes of the experiment."""
    from meshwright.plan import _internal as planning

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "compiled.json"
        command = _command(options, changes, file)
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        if file.exists():
            return planning.compiled_from(json.loads(file.read_text("utf-8")))
    raise planning.NotCompiledError(_reason(done))


def _command(options: argparse.Namespace, changes: "Settings", file: Path) -> list[str]:
    settings = [f"{name}={value}" for name, value in options.settings.items()]
    words = ["plan", options.target, "--on", options.on, "--compile-to", str(file), *settings]
    return [sys.executable, "-m", "meshwright", *words, "--changes", json.dumps(dict(changes))]


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of the error, the only one that helps the user, or the process's exit code."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    found = next((line for line in reversed(lines) if "Error" in line or "error:" in line), None)
    return (
        found
        or f"the compiler's process ended with exit code {done.returncode}: "
        f"{lines[-1] if lines else 'it printed nothing'}"
    )


def _told(site: "Site", made: "Plan") -> Result:
    from meshwright.plan import _internal as planning

    document = _document(made)
    if made.memory.fits:
        return _fitted(planning.described(made)), document
    changes = planning.cheapest_changes(site)
    document["changes"] = [_changed(change) for change in changes]
    text = f"{planning.described(made)}\n\n{planning.described_changes(changes)}"
    return _fitted(text), document, EXIT_FAILED


def _searched(site: "Site", options: argparse.Namespace) -> Result:
    from meshwright.plan import _internal as planning

    found, note = planning.search(site), []
    missing = planning.missing_compiler(site.hardware)
    if not options.traced and missing:
        note = [f"all is estimated: install {missing} to compile the best for this hardware"]
    elif not options.traced:
        found = planning.with_finalists(site, found, lambda changes: _compiled(options, changes))
    fits = any(change.plan.memory.fits for change in found)
    document = {"tried": [_changed(change) for change in found]}
    text = "\n\n".join([planning.described_search(found), *note, *site.ruled])
    return _fitted(text), document, EXIT_DONE if fits else EXIT_FAILED


def _fitted(text: str) -> str:
    return wrapped(text, width=screen_width(), indent="    ")


def _changed(change: Any) -> dict[str, Any]:
    return {"settings": dict(change.settings), "plan": _document(change.plan)}


def _document(made: "Plan") -> dict[str, Any]:
    """Return a plan as JSON can store it: keys made of several axes are joined by `+`."""
    document = dataclasses.asdict(made)
    document["time"]["network"] = {"+".join(axes): each for axes, each in made.time.network.items()}
    document["time"]["seconds"] = made.time.seconds
    document["memory"] |= {"peak": made.memory.peak, "fits": made.memory.fits}
    document["checkpoint"]["seconds"] = made.checkpoint.seconds
    return document
