"""`meshwright plan`: estimate a step on hardware that this machine does not have.

Compilers of accelerators kill their own process on some errors. So the compiler runs in a child process,
which builds the experiment again and writes what it found to a file.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from meshwright.base import _internal as base
from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import load_locally, use_fake_devices
from meshwright.cli._target import add_target
from meshwright.errors import EXIT_DONE, EXIT_FAILED, UsageError
from meshwright.plan import _internal as planning


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.with_settings(
        "plan",
        plan,
    )
    add_target(command)
    command.add_argument(
        "--on",
        required=True,
        metavar="HARDWARE",
        help="chip and number: h100:64x8 (64 hosts with 8 GPUs each), v5e:16x16 (a TPU slice of that "
        "topology) or cpu:8",
    )
    command.add_argument(
        "--search",
        action="store_true",
        help="try meshes, remat of layers, microbatches and offloading; compile the best, and rank them",
    )
    command.add_argument(
        "--traced",
        action="store_true",
        help="do not compile the step, only trace it: faster, but less exact",
    )
    command.add_argument(
        "--bandwidth",
        type=float,
        default=1.0,
        metavar="GB/s",
        help="speed at which one host writes a checkpoint (default: 1 GB/s)",
    )
    command.add_argument("--compile-to", metavar="FILE", help=argparse.SUPPRESS)
    command.add_argument("--changes", default="{}", metavar="JSON", help=argparse.SUPPRESS)


def plan(options: argparse.Namespace) -> Result:
    """Plan the experiment's step. Exit code 1 if it does not fit into the memory."""
    if options.search and "mesh" in options.settings:
        raise UsageError(
            f"mesh={options.settings['mesh']} has no effect with --search, which tries all meshes that the "
            "devices can have. Leave out one of the two."
        )
    import dataclasses

    os.environ["JAX_PLATFORMS"] = "cpu"  # set before JAX loads, so that it does not look for accelerators
    hardware = planning.hardware_named(options.on)
    if hardware.chip.target is None:
        use_fake_devices(hardware.num_devices)
    experiment = load_locally(options.target, options.settings, options.flags)
    site = planning.site_of(experiment, hardware, bandwidth=options.bandwidth * 1e9)
    if options.compile_to:
        changed = planning.changed(site.experiment, json.loads(options.changes))
        site = dataclasses.replace(site, experiment=changed)
        Path(options.compile_to).write_text(json.dumps(dataclasses.asdict(site.compile())), encoding="utf-8")
        return EXIT_DONE
    if options.search:
        return _searched(site, options)
    return _answer(site, planning.planned(site, None if options.traced else lambda: _compiled(options, {})))


def _compiled(options: argparse.Namespace, changes: "planning.Settings") -> "planning.Compiled":
    """Return the result of a compiler that ran in a child process, with some changes of the experiment."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "compiled.json"
        command = _command(options, changes, file)
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        if file.exists():
            return planning.compiled_from(json.loads(file.read_text("utf-8")))
    raise planning.NotCompiledError(_reason(done))


def _command(options: argparse.Namespace, changes: "planning.Settings", file: Path) -> list[str]:
    settings = [f"{name}={value}" for name, value in options.settings.items()]
    words = ["plan", options.target, "--on", options.on, "--compile-to", str(file), *settings]
    return [sys.executable, "-m", "meshwright", *words, "--changes", json.dumps(dict(changes))]


def _reason(done: Any) -> str:
    """Return the last line of the error, the only one that helps the user, or the process's exit code."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    message = next((line for line in reversed(lines) if "Error" in line or "error:" in line), None)
    return (
        message
        or f"the compiler's process ended with exit code {done.returncode}: "
        f"{lines[-1] if lines else 'it printed nothing'}"
    )


def _answer(site: "planning.Site", plan: "planning.Plan") -> Result:
    document = _document(plan)
    if plan.memory.fits:
        return _fitted(planning.described(plan)), document
    changes = planning.cheapest_changes(site)
    document["changes"] = [_changed(change) for change in changes]
    text = f"{planning.described(plan)}\n\n{planning.described_changes(changes)}"
    return _fitted(text), document, EXIT_FAILED


def _searched(site: "planning.Site", options: argparse.Namespace) -> Result:
    changes, note = planning.search(site), []
    missing = planning.missing_compiler(site.hardware)
    if not options.traced and missing:
        note = [f"all is estimated: install {missing} to compile the best for this hardware"]
    elif not options.traced:
        changes = planning.with_finalists(site, changes, lambda changes: _compiled(options, changes))
    fits = any(change.plan.memory.fits for change in changes)
    document = {"tried": [_changed(change) for change in changes]}
    text = "\n\n".join([planning.described_search(changes), *note, *site.ruled])
    return _fitted(text), document, EXIT_DONE if fits else EXIT_FAILED


def _fitted(text: str) -> str:
    return base.wrapped(text, width=base.screen_width(), indent="    ")


def _changed(change: Any) -> dict[str, Any]:
    return {"settings": dict(change.settings), "plan": _document(change.plan)}


def _document(plan: "planning.Plan") -> dict[str, Any]:
    """Return a plan as JSON can store it: keys made of several axes are joined by `+`."""
    import dataclasses

    document = dataclasses.asdict(plan)
    document["time"]["network"] = {"+".join(axes): each for axes, each in plan.time.network.items()}
    document["time"]["seconds"] = plan.time.seconds
    document["memory"] |= {"peak": plan.memory.peak, "fits": plan.memory.fits}
    document["checkpoint"]["seconds"] = plan.checkpoint.seconds
    return document
