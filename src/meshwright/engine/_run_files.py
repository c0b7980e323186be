"""The files in which a run describes itself, without secrets: settings, environment, program, outcome."""

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

import meshwright
from meshwright.base._internal import is_address, mesh_text, parse_object, read_file, tree
from meshwright.checkpoints._internal import Checkpoints, step_name
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.processes import _internal as processes
from meshwright.training._internal import describe_state

PROGRAMS = "programs.json"
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
        ending = parse_object(read_file(outcome))
    except (OSError, ValueError) as error:
        return f"{outcome} cannot be read: {error}"
    how = ": ".join(str(ending[name]) for name in ("ended", "message") if name in ending)
    return None if ending.get("ended") == "finished" else how


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
        process = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, timeout=5)
        return process.stdout.decode().strip() or None
    return None


def _secret(value: Any) -> str:
    """Return asterisks for a secret."""
    if secrets_in({"settings": {"": value}}):
        return _SECRET
    raise TypeError(f"JSON cannot hold {value!r}")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False, default=_secret) + "\n", encoding="utf-8")


_MAX_PROGRAMS = 100
"""The largest number of kinds that are kept, so that the file stays small."""


def noted_program(directory: Path, training: Training, step: int) -> str | None:
    """Write the digest of the step's program, and return a remark if it differs from the one so far.

    Only process 0 calls it.
    """
    digests = _read_programs(directory / PROGRAMS) if step else {}
    kind, digest = _kind_of_program(training), training.step.digest
    previous = digests.get(kind)
    others = [pair for pair in digests.items() if pair[0] != kind]
    _write_json(directory / PROGRAMS, dict([*others[1 - _MAX_PROGRAMS :], (kind, digest)]))
    if previous is None or previous == digest:
        return None
    return (
        f"  ! the program of the training step differs from the one that trained up to step {step}: the code "
        "of the model, the loss or the optimizer has changed, or a setting"
    )


def _kind_of_program(training: Training) -> str:
    """Return the kind of a program: everything besides the code and settings that its text depends on."""
    leaves = tree.named_leaves(training.batch)
    shapes = ", ".join(f"{name or 'batch'} {x.dtype}{list(x.shape)}" for name, x in leaves.items())
    mesh = mesh_text(training.layout.mesh.shape)
    device = training.layout.mesh.devices.flat[0].device_kind
    return f"meshwright {meshwright.__version__}, jax {jax.__version__}, {device}, mesh {mesh}, {shapes}"


def _read_programs(path: Path) -> Mapping[str, Any]:
    try:
        return parse_object(read_file(path))
    except (OSError, ValueError):  # missing or damaged: there is nothing to compare with
        return {}
