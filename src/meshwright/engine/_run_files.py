"""The files in which a run describes itself: settings, environment and outcome. They contain no secrets."""

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from meshwright.base._internal import is_address, parse_object, read_file
from meshwright.checkpoints._internal import Checkpoints, step_name
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.processes import _internal as processes
from meshwright.training._internal import describe_state

PACKAGES = ("meshwright", "jax", "jaxlib", "numpy", "optax")
BEGAN_FROM = "began_from.txt"
ATTEMPTS = "attempts"
"""The folder with the settings of each attempt, by the step from which it continued."""
_SECRET = "**********"
"""The text shown in place of a secret, as in pydantic."""


def write_description(
    directory: Path, settings: Settings, checkpoints: Checkpoints | None, training: Training, step: int
) -> None:
    """Write the settings, the command and the environment of a run, without secrets, on process 0."""
    origin = settings.origin
    secrets = secrets_in(origin)
    described = without_secrets(settings.described(), secrets)
    (directory / "experiment.txt").write_text(described, encoding="utf-8")
    (directory / ATTEMPTS).mkdir(exist_ok=True)
    (directory / ATTEMPTS / f"{step_name(step)}.txt").write_text(described, encoding="utf-8")
    state = describe_state(training.target, training.frozen)
    (directory / "state.txt").write_text(f"{state}\n", encoding="utf-8")
    _write_began_from(directory / BEGAN_FROM, training.began_from, step)
    if origin is not None:
        _write_json(directory / "experiment.json", origin)
    is_elsewhere = settings.save is None or settings.save.directory or is_address(settings.place or "")
    elsewhere = str(checkpoints.directory) if checkpoints and is_elsewhere else None
    where = environment(training.layout.mesh, secrets) | {"checkpoints": elsewhere}
    _write_json(directory / "environment.json", where)


def _write_began_from(path: Path, sources: Sequence[str], step: int) -> None:
    """Write the checkpoints that the run began from. They stay when the run continues."""
    if sources:
        path.write_text("".join(f"{source}\n" for source in sources), encoding="utf-8")
    elif step == 0:
        path.unlink(missing_ok=True)


def secrets_in(origin: Mapping[str, Any] | None) -> list[str]:
    """Return the values of secret settings, which must not be written to files."""
    settings = (origin or {}).get("settings", {}).values()
    return [setting.get_secret_value() for setting in settings if hasattr(setting, "get_secret_value")]


def without_secrets(text: str, secrets: Sequence[str]) -> str:
    """Return a text with each secret replaced by asterisks."""
    for secret in filter(None, secrets):
        text = text.replace(secret, _SECRET)
    return text


def ended_before(directory: Path) -> str | None:
    """Return how the attempt before ended; None if there was none, or if it was finished.

    A launcher that has started the run again knows it; else the outcome says it, which a run that was killed
    could not write.
    """
    if why := processes.why_started_again():
        return why
    outcome, reports = directory / "outcome.json", directory / "metrics.jsonl"
    if not outcome.exists():
        has_begun = reports.exists() and reports.stat().st_size
        return "it was killed, and could not say why" if has_begun else None
    try:
        told = parse_object(read_file(outcome))
    except (OSError, ValueError) as error:
        return f"{outcome} cannot be read: {error}"
    how = ": ".join(str(told[name]) for name in ("ended", "message") if name in told)
    return None if told.get("ended") == "finished" else how


def write_outcome(directory: Path, outcome: Mapping[str, Any] | None) -> None:
    """Write how the run ended; None removes the outcome of the attempt before. Only process 0 calls it."""
    (directory / "outcome.json").unlink(missing_ok=True)
    if outcome is not None:
        _write_json(directory / "outcome.json", outcome)


def environment(mesh: jax.sharding.Mesh, secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Return the versions, devices and command line of this run, as values for JSON."""
    return {
        "command": [without_secrets(word, secrets) for word in sys.argv],
        "commit": _commit(),
        "host": platform.node(),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "devices": {"kind": jax.devices()[0].device_kind, "count": jax.device_count()},
        "processes": jax.process_count(),
        "mesh": dict(mesh.shape),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _commit() -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, timeout=5)
        return found.stdout.decode().strip() or None
    return None


def _secret(value: Any) -> str:
    """Return asterisks for a secret."""
    if secrets_in({"settings": {"": value}}):
        return _SECRET
    raise TypeError(f"JSON cannot hold {value!r}")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False, default=_secret) + "\n", encoding="utf-8")
