"""`meshwright inspect`: what a run or a checkpoint holds, read from the files alone."""

import argparse
import math
from pathlib import Path
from typing import Any

from meshwright.checkpoint import open_source
from meshwright.cli._train import Result
from meshwright.errors import InputError
from meshwright.metrics import read_jsonl
from meshwright.sharding import human_bytes


def inspect(options: argparse.Namespace) -> Result:
    """Show the newest checkpoint under a path, and of a run directory also how it fares.

    Raises:
      InputError: there is nothing to be shown.
    """
    path = Path(options.path)
    if not path.exists():
        raise InputError(f"{path} does not exist. Give a run directory, or checkpoints.")
    checkpoints = checkpoints_of(path)
    if checkpoints == path:
        found = _checkpoint(path)
    elif any(checkpoints.glob("step_*/manifest.json")):
        found = {"run": str(path), "reported": _newest_report(path), **_checkpoint(checkpoints)}
    else:
        found = {"run": str(path), "reported": _newest_report(path), "checkpoint": None}
    return _text(found), found


def checkpoints_of(path: str | Path) -> Path:
    """Return where the checkpoints of a run directory are; or `path`, where it is none."""
    is_run = (Path(path) / "experiment.txt").exists()
    return Path(path) / "checkpoints" if is_run else Path(path)


def _checkpoint(path: Path) -> dict[str, Any]:
    source = open_source(path)
    arrays = {
        name: {"shape": list(x.shape), "dtype": x.dtype.name, "bytes": math.prod(x.shape) * x.dtype.itemsize}
        for name, x in source.arrays().items()
    }
    return {
        "checkpoint": str(source),
        "step": source.step,
        "writer": source.writer,
        "bytes": sum(array["bytes"] for array in arrays.values()),
        "extra": source.extra,
        "arrays": arrays,
    }


def _newest_report(run: Path) -> dict[str, Any]:
    metrics = run / "metrics.jsonl"
    reports = read_jsonl(metrics) if metrics.exists() else []
    return {name: value for report in reports for name, value in report.items() if name != "time"}


def _text(found: dict[str, Any]) -> str:
    head = {key: value for key, value in found.items() if key not in ("arrays", "bytes")}
    lines = [f"{key:11} {_flat(value)}" for key, value in head.items()]
    if not found["checkpoint"]:
        return "\n".join(lines)
    lines += [f"{'bytes':11} {human_bytes(found['bytes'])}"]
    width = max(map(len, found["arrays"]), default=0)
    rows = [
        f"  {name:{width}}  {' × '.join(map(str, array['shape'])) or 'scalar':18} {array['dtype']:9} "
        f"{human_bytes(array['bytes']):>9}"
        for name, array in found["arrays"].items()
    ]
    return "\n".join([*lines, "", *rows])


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        inner = (
            (key, f"({_flat(part)})" if isinstance(part, dict) else _flat(part))
            for key, part in value.items()
        )
        return "  ".join(f"{key}={part}" for key, part in inner)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
