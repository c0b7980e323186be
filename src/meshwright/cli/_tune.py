"""`meshwright tune`: tune a model of Hugging Face's on chats or texts, and write an adapter or a model."""

import argparse
from collections.abc import Mapping
from typing import Any

from meshwright.cli._train import Result, start

_TARGET = "meshwright.lm:tuning"


def tune(options: argparse.Namespace) -> Result:
    """Train, then write the best checkpoint. The same command continues a run that was cut off."""
    settings = {"model": options.model, "data": options.data, **options.settings}
    if options.full:
        settings["full"] = "true"
    how = {"strict": options.strict, "verbose": options.verbose, "started": options.started}
    done = start(_TARGET, settings, options.fake_devices, **how)
    from meshwright.lm._internal import write_best

    workdir = settings.get("workdir", "runs/tuned")
    step, files = write_best(workdir, options.model, merge=options.merge, **_adapter(settings))
    if not isinstance(done, tuple):
        return done
    text, found = done[:2]
    told = f"{text}\n\n written, of step {step}:\n" + "\n".join(f"   {path}" for path in files)
    return told, {**found, "written_step": step, "files": [str(path) for path in files]}


def _adapter(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that describe the adapter. `start` has checked them."""
    from meshwright.cli._overrides import convert

    kinds = {"lora": int, "alpha": float | None, "full": bool}
    return {name: convert(name, settings[name], kind) for name, kind in kinds.items() if name in settings}
