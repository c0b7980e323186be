"""The program of a run's step, by which a run that continues notices that its code has changed.

`programs.json` has a digest of the step's lowered text for each kind of batch and devices (`_known_by`).
Others give another text from the same code, so only digests of one kind are compared.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

import meshwright
from meshwright.base._internal import mesh_text, parse_object, read_file, tree
from meshwright.engine._training import Training

PROGRAMS = "programs.json"
_NUM_KEPT = 100
"""The largest number of kinds that are kept, so that the file stays small."""


def noted_program(directory: Path, training: Training, step: int) -> str | None:
    """Write the digest of the step's program, and return a remark if it differs from the one so far.

    Only process 0 calls it.
    """
    known, kind, digest = (
        _read(directory / PROGRAMS) if step else {},
        _known_by(training),
        training.step.digest,
    )
    before = known.get(kind)
    others = [pair for pair in known.items() if pair[0] != kind]
    kept = dict([*others[1 - _NUM_KEPT :], (kind, digest)])
    (directory / PROGRAMS).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    if before is None or before == digest:
        return None
    return (
        f"  ! the program of the training step differs from the one that trained up to step {step}: the code "
        "of the model, the loss or the optimizer has changed, or a setting"
    )


def _known_by(training: Training) -> str:
    """Return the kind of a program: everything besides the code and settings that its text depends on."""
    leaves = tree.named_leaves(training.batch)
    shapes = ", ".join(f"{name or 'batch'} {x.dtype}{list(x.shape)}" for name, x in leaves.items())
    mesh = mesh_text(training.layout.mesh.shape)
    device = training.layout.mesh.devices.flat[0].device_kind
    return f"meshwright {meshwright.__version__}, jax {jax.__version__}, {device}, mesh {mesh}, {shapes}"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return parse_object(read_file(path))
    except (OSError, ValueError):  # missing or damaged: there is nothing to compare with
        return {}
