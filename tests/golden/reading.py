"""Read back what runs wrote, so that it can be compared to the bit: `python reading.py FOLDER`.

It runs with the source tree that wrote it, and asks of that no more than `mw.checkpoints.open_source`.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

import meshwright as mw

TAKES_TIME = re.compile(r"^time$|second|wait$|^tflops|^mfu$|^hfu$")
"""The reported values that tell how long something took."""


def digest(x: Any) -> list[Any]:
    """Return the dtype, the shape and the SHA-256 of the bytes of an array."""
    array = np.asarray(x)
    return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def leaves(checkpoint: Path) -> dict[str, list[Any]]:
    """Return the digest of each array of a checkpoint, or of the newest in a directory, by name."""
    return {name: digest(x) for name, x in sorted(mw.checkpoints.open_source(checkpoint).arrays().items())}


def reports(run: Path) -> dict[str, dict[str, Any]]:
    """Return all that a run reported, but what tells of time, by step."""
    found: dict[str, dict[str, Any]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        report = json.loads(line)
        kept = {name: value for name, value in report.items() if not TAKES_TIME.search(name)}
        found.setdefault(str(kept.pop("step")), {}).update(kept)
    return found


def read_all(folder: Path) -> dict[str, Any]:
    """Return the reports and the newest leaves of each run below a folder, and what `recording` left."""
    losses = {_name(path.parent, folder): reports(path.parent) for path in folder.rglob("metrics.jsonl")}
    found = {_name(path, folder): leaves(path) for path in folder.rglob("checkpoints") if path.is_dir()}
    for path in folder.rglob("fits.json"):
        for i, fit in enumerate(json.loads(path.read_text())):
            losses[f"fit {i}"] = {"end": fit["scores"]}
            found[f"fit {i}"] = fit["params"]
    return {"library": mw.__file__, "losses": losses, "leaves": found}


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


if __name__ == "__main__":
    print(json.dumps(read_all(Path(sys.argv[1]))))
