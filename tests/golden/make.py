"""Keep what this version computes and writes, and compare two versions on one machine.

    python tests/golden/make.py compare --a OLD/src --b NEW/src    # on this machine, to the bit
    python tests/golden/make.py record                             # losses.json, run.json and run/, anew

A source tree is a folder that holds `meshwright`. Beside it lie the `examples` and `tests` that belong to it,
and its examples are run by the words of its own `make.py`.
"""

import argparse
import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SRC = HERE.parents[1] / "src"
RECORDED = ("digits", "digits_equinox", "digits_linen", "digits_nnx")
"""The examples whose losses are in `losses.json`."""
STDLIB_FILE = json.__file__
"""A text of some length to learn, the same for all commits."""

SMALL = (
    *("steps=60", "layers=1", "length=64", "evaluated=16384", "logging.every=1", "save.when=10"),
    *("evaluations.held_out.when=10", "evaluations.train.when=25"),
)
DECODER = (f"file={STDLIB_FILE}", "batch_size=8", "logging.every=1")
CASES = {
    "batch_norm": ("batch_norm.py",),
    "digits": ("digits.py",),
    "digits, split": ("digits.py", "fsdp=4,tensor=2"),
    "digits_equinox": ("digits_equinox.py",),
    "digits_linen": ("digits_linen.py",),
    "digits_nnx": ("digits_nnx.py",),
    "finetune": ("finetune.py",),
    "decoder": ("decoder.py", *DECODER, "mesh=data=8", "length=16", "steps=20", "compute_dtype=none"),
    "decoder, split": ("decoder.py", *DECODER, "length=64", "steps=10", "mesh=fsdp=4,tensor=2"),
    "source_code": ("source_code.py", "workdir=run", *SMALL),
    "finetune_source_code": (
        *("finetune_source_code.py", "base=../source_code/run", "steps=20", "layers=1", "length=64"),
        *("logging.every=1", "batch_size=8"),
    ),
    "demo digits": ("demo", "digits", "workdir=run", "steps=120", "logging.every=1"),
    "demo text": ("demo", "text", "workdir=run", "steps=30", "logging.every=1"),
}
"""Each example as it is run: the program, or `demo`, and its words. `finetune_source_code` reads what
`source_code` left."""


def run(src: Path, cwd: Path, *words: str | Path, also: Path | None = None) -> str:
    """Return what Python prints in `cwd` with `meshwright` from `src`, on eight virtual CPU devices."""
    found = [str(path) for path in (src.resolve(), also) if path]
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-B", *words],
        cwd=cwd,
        env={**os.environ, **flags, "PYTHONPATH": os.pathsep.join(found)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"python {' '.join(map(str, words))} with {src} failed:\n{done.stderr}")
    return done.stdout


def example(src: Path, folder: Path, name: str) -> dict[str, Any]:
    """Run an example of `src` below `folder`, and return its losses and leaves."""
    of_src = _beside(src)
    program, *words = runpy.run_path(str(of_src / "make.py"))["CASES"][name]
    here = folder / name
    here.mkdir()
    if program == "demo":
        run(src, here, "-m", "meshwright", "demo", *words)
    else:
        run(src, here, of_src / "recording.py", src.resolve().parent / "examples" / program, *words)
    found = _read(src, here)
    if not found["leaves"]:
        raise SystemExit(f"{name} with {src} left nothing to compare in {here}")
    return found


def _beside(src: Path) -> Path:
    """Return the folder of this file in the commit of `src`, whose examples are run by words of its own."""
    found = src.resolve().parent / "tests" / "golden"
    return found if found.is_dir() else HERE


def differences(a: Mapping[str, Any], b: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield where b differs from a, and both values. What only b has is no difference."""
    for name in a:
        where = f"{at}/{name}".lstrip("/")
        if name in b and isinstance(a[name], dict) and isinstance(b[name], dict):
            yield from differences(a[name], b[name], where)
        elif name not in b or a[name] != b[name]:
            yield where, a[name], b.get(name, "nothing")


def told(found: list[tuple[str, Any, Any]]) -> str:
    """Return how many values differ, which is the first, and by how much at most, as far as numbers tell."""
    if not found:
        return "equal to the bit"
    where, old, new = found[0]
    numbers = [(x, y) for _, x, y in found if isinstance(x, float) and isinstance(y, float)]
    relative = max((abs(y - x) / max(abs(x), abs(y)) for x, y in numbers), default=None)
    by = "" if relative is None else f", by {relative:.1e} of the value at most"
    return f"{len(found)} differ{by}; the first is {where}: {old} in a, {new} in b"


def compare(a: Path, b: Path, names: list[str]) -> int:
    """Run examples of both source trees and print in what they differ; return how many do."""
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        for tree in "ab":
            (Path(folder) / tree).mkdir()
        for name in names:
            first, second = (example(src, Path(folder) / tree, name) for tree, src in (("a", a), ("b", b)))
            for part in ("losses", "leaves"):
                found = list(differences(first[part], second[part]))
                differing += bool(found)
                print(f"{name}: {part}: {_count(first[part])} values, {told(found)}", flush=True)
    return differing


def _count(values: Any) -> int:
    return sum(map(_count, values.values())) if isinstance(values, dict) else 1


def record() -> None:
    """Write the losses of examples, a run of 4 steps, digests of its arrays, and its reports to step 6."""
    with tempfile.TemporaryDirectory() as folder:
        ends = {name: example(SRC, Path(folder), name)["losses"]["fit 0"]["end"] for name in RECORDED}
    versions = "import jax, json, platform as p; print(json.dumps([jax.__version__, p.python_version()]))"
    jax, python = json.loads(run(SRC, HERE, "-c", versions))
    _write(
        HERE / "losses.json",
        {"jax": jax, "python": python, "losses": {name: end["test/loss"] for name, end in ends.items()}},
    )
    shutil.rmtree(HERE / "run", ignore_errors=True)
    _train(HERE, 4)
    recorded = {"leaves": _read(SRC, HERE / "run")["leaves"]["checkpoints"]}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(HERE / "run", Path(folder) / "run")
        _train(Path(folder), 6)
        recorded["reports"] = _read(SRC, Path(folder))["losses"]["run"]
    _write(HERE / "run.json", recorded)
    (HERE / "run" / "report.html").unlink()  # it is made from the other files
    without_this_machine(HERE / "run", SRC.parent)


def _train(cwd: Path, steps: int) -> None:
    words = ("train", "small:experiment", "workdir=run", f"steps={steps}")
    run(SRC, cwd, "-m", "meshwright", *words, also=HERE / "programs")


def _read(src: Path, folder: Path) -> dict[str, Any]:
    found = json.loads(run(src, folder, _beside(src) / "reading.py", "."))
    if not Path(found["library"]).is_relative_to(src.resolve()):
        raise SystemExit(f"{found['library']} was run, and not the library in {src}")
    return found


def without_this_machine(folder: Path, root: Path) -> None:
    """Write "host" for the name of this machine, and "/code" for where its source was, and remove locks.

    Raises:
      SystemExit: The name or a path of this machine is left somewhere.
    """
    host = socket.gethostname()
    tells = re.compile(rf"\b{re.escape(host)}\b|{re.escape(str(root))}|{re.escape(str(HERE))}".encode())
    for lock in folder.rglob("*.lock"):
        lock.unlink()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.suffix in {".json", ".html", ".txt", ".log", ".jsonl"}:
            text = path.read_text().replace(str(root), "/code")
            path.write_text(re.sub(rf"\b{re.escape(host)}\b", "host", text))
        renamed = path.rename(path.with_name(path.name.replace(f".{host}.", ".host.")))
        if left := tells.search(f"{renamed.relative_to(folder)}\n".encode() + renamed.read_bytes()):
            raise SystemExit(f"{renamed} still tells of this machine: {left[0]!r}")


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    of_two = commands.add_parser("compare")
    of_two.add_argument("--a", type=Path, required=True)
    of_two.add_argument("--b", type=Path, required=True)
    of_two.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    commands.add_parser("record")
    options = parser.parse_args()
    if options.command == "compare":
        return int(compare(options.a, options.b, options.only) > 0)
    record()
    return 0


if __name__ == "__main__":
    sys.exit(main())
