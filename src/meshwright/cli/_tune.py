"""`meshwright tune`: tune a model of Hugging Face's on chats or texts, and write an adapter or a model."""

import argparse
from collections.abc import Mapping
from typing import Any

from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import Recipe
from meshwright.cli._train import add_strict, add_verbose, start
from meshwright.lm import _internal as lm

_TARGET = "meshwright.lm:tuning"


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.with_settings(
        "tune",
        tune,
    )
    command.add_argument(
        "model", metavar="FOLDER", help="the folder of the model, as `hf download` fetches it"
    )
    command.add_argument(
        "data",
        metavar="FILE",
        help='a file of JSON lines: {"messages": […]}, {"prompt": …, "completion": …}, {"text": …}, or '
        '{"tokens": [1, 15, 7], "weights": [0, 1, 1]}',
    )
    command.add_argument("--full", action="store_true", help="train all parameters (default: an adapter)")
    command.add_argument(
        "--merge", action="store_true", help="write the model with the adapter added, not the adapter alone"
    )
    add_strict(command)
    add_verbose(command)


def tune(options: argparse.Namespace) -> Result:
    """Train, then write the best checkpoint. The same command continues a run that was cut off."""
    settings = {"model": options.model, "data": options.data, **options.settings}
    if options.full:
        settings["full"] = "true"
    recipe = Recipe(_TARGET, settings, options.fake_devices, options.flags)
    done = start(recipe, strict=options.strict, verbose=options.verbose, started=options.started)
    workdir = settings.get("workdir", "runs/tuned")
    step, files = lm.write_best(workdir, options.model, merge=options.merge, **_adapter(settings))
    if not isinstance(done, tuple):
        return done
    text, document = done[:2]
    message = f"{text}\n\n written, of step {step}:\n" + "\n".join(f"   {path}" for path in files)
    return message, {**document, "written_step": step, "files": [str(path) for path in files]}


def _adapter(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that describe the adapter. `start` has checked them."""
    from meshwright.cli import _overrides

    kinds = {"lora": int, "alpha": float | None, "full": bool}
    return {
        name: _overrides.convert(name, settings[name], kind)
        for name, kind in kinds.items()
        if name in settings
    }
