"""Runs with crafted manifests and damaged files, through every command, each in a fork of this program.

    python -m cli.fuzz manifests,runs 2000 seed        # a fourth number: the case to begin with

It imports everything and makes no device, trains one small run in a fork, and then, case by case, copies
that, changes it, and lets a fork with a limit to its memory go through the commands. It prints a line of JSON
for each case that went wrong: a traceback, a signal, a hang, an escape sent to the terminal, a value that is
neither the one that was saved nor told to be damaged, or a file written outside; and at last the numbers.
"""

import contextlib
import faulthandler
import io
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import unicodedata
from pathlib import Path

import numpy as np

import meshwright as mw
from cli.damages import change_manifest, damage_run
from meshwright.checkpoints._formats._inspect import verify
from meshwright.cli import main
from meshwright.errors import MeshwrightError

MEMORY_BYTES, SECONDS = 500 << 20, 60
RESUMED = 10
"""Of so many cases one is also resumed: it may train, which takes a second."""
STEPS, FORMATS = (2, 4), ("native", "npz", "safetensors")


def experiment(workdir: str = "runs/a", max_steps: int = 4) -> mw.Experiment:
    """Return the run that is damaged."""
    import optax

    examples = {"x": np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)}
    measure = lambda params, batch: {"loss": ((batch["x"] @ params["w"]) ** 2).sum(-1)}
    outputs = lambda params, batch: {"y": batch["x"] @ params["w"]}
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: {"w": np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3), "b": np.ones(5)},
        loss=lambda params, batch, key: measure(params, batch)["loss"].mean() + params["b"].sum() ** 2,
        optimizer=optax.adam(0.1),
        input=mw.Input(examples, batch_size=8),
        max_steps=max_steps,
        evaluations={"test": mw.Evaluation(measure, examples, when=2, batch_size=8, outputs=outputs)},
        save=mw.Save(when=2),
        logging=mw.Logging(every=1),
        compile=mw.Compile(cache=False),
    )


def in_a_fork(act) -> int:
    """Run `act` in a fork of this program, and return its status as `wait` gives it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(SECONDS)  # what hangs is ended by a signal, and shows where it was
            code = act() or 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    return os.waitpid(pid, 0)[1]


def prepare(base: Path) -> Path:
    """Train the run, and convert it to what strangers give."""

    def train() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert main(["train", "cli.fuzz:experiment", f"workdir={base}/good"]) == 0
            for name in ("npz", "safetensors"):
                to = f"{base}/good/exports/{'x.npz' if name == 'npz' else name}"
                assert main(["convert", f"{base}/good", to, "--to", name, "--subtree", "params"]) == 0

    assert in_a_fork(train) == 0
    (base / "outside").mkdir()
    (base / "outside/precious").write_text("precious")
    return base / "good"


def commands(run: Path, good: Path, out: Path, chance: random.Random) -> list[list[str]]:
    """Return the command lines of one case."""
    exports = [str(run / "exports/x.npz"), str(run / "exports/safetensors")]
    where = [
        str(run),
        str(run / "checkpoints"),
        str(run / f"checkpoints/step_{chance.choice(STEPS):08d}"),
        *exports,
    ]
    lines = [
        *(["inspect", place] for place in (where[0], chance.choice(where))),
        ["inspect", chance.choice(where), "--best", *chance.choice(([], ["test/loss:min"]))],
        ["verify", chance.choice(where[:3])],
        ["report", str(run), *chance.choice(([], [str(good), "--to", str(out / "both.html")]))],
        ["runs", str(run.parent)],
        ["trace", str(run)],
        ["diff", chance.choice(where), str(good)],
        ["convert", chance.choice(where), str(out / "x.npz"), "--to", chance.choice(FORMATS)],
        ["pin", str(run), str(STEPS[0])],
        ["unpin", str(run), str(STEPS[0])],
        ["show", "cli.fuzz:experiment", "--against", str(run)],
    ]
    return [[*line, *["--json"] * (chance.random() < 0.3)] for line in lines]


def play(line: list[str], problems: list) -> None:
    """Run one command, and see whether it answers as it should."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(line)
    except SystemExit as left:
        code = left.code
    except BaseException:
        problems.append({"command": line, "traceback": traceback.format_exc()[-3000:]})
        return
    text = said.getvalue()
    sent = {each for each in text if each not in "\n\t" and unicodedata.category(each) in ("Cc", "Cs", "Cf")}
    if "Traceback (most recent" in text or sent or not isinstance(code, int) or len(text) > 1 << 20:
        problems.append(
            {"command": line, "code": code, "sent": sorted(map(ascii, sent)), "said": text[-2000:]}
        )


def silent_values(run: Path, good: Path) -> list:
    """Return which arrays read as something else than was saved, while nothing tells of damage."""
    wrong = []
    for step in STEPS:
        place = Path("checkpoints") / f"step_{step:08d}"
        with contextlib.suppress(MeshwrightError, OSError):
            saved = mw.checkpoints.open_source(good / place).arrays()
            for name, array in mw.checkpoints.open_source(run / place).arrays().items():
                with contextlib.suppress(MeshwrightError):
                    if not same(np.asarray(array), np.asarray(saved[name]) if name in saved else None):
                        wrong.append([str(place), name])
            if wrong and verify(run / place).damage:
                wrong.clear()
    with contextlib.suppress(MeshwrightError, OSError):
        saved = mw.checkpoints.open_source(good / "exports/x.npz").arrays()
        for name, array in mw.checkpoints.open_source(run / "exports/x.npz").arrays().items():
            with contextlib.suppress(MeshwrightError):
                if name in saved and not same(np.asarray(array), np.asarray(saved[name])):
                    wrong.append(["x.npz", name])
    return wrong


def same(a, b) -> bool:
    return b is not None and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def limit_memory() -> None:
    """Let this process take no more memory than it has now and a certain amount besides."""
    status = Path("/proc/self/status").read_text()
    used = int(status.partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_BYTES,) * 2)


def outside(base: Path, case: Path) -> dict:
    """Return what lies beside the case."""
    found = {}
    for path in base.rglob("*"):
        if not path.is_relative_to(case):
            found[str(path)] = path.read_bytes() if path.is_file() else None
    return found


def one_case(kind: str, number: int, seed: int, base: Path, good: Path) -> list:
    """Return what went wrong in one case."""
    chance = random.Random(f"{seed}/{kind}/{number}")
    case = base / "case"
    run, out, answer = case / "runs/a", case / "out", base / "answer"
    shutil.copytree(good, run, symlinks=True)
    out.mkdir()
    told = change_manifest(run, chance) if kind == "manifests" else damage_run(run, base / "outside", chance)
    before = outside(base, case)
    resumed = number % RESUMED == 0

    def go() -> None:
        problems: list = []
        os.environ["TMPDIR"] = tempfile.tempdir = str(out)
        os.chdir(out)
        if resumed:
            play(["eval", str(run), "cli.fuzz:experiment", *chance.choice(([], ["--best"]))], problems)
            play(["resume", str(run), "cli.fuzz:experiment", "max_steps=5"], problems)
        else:
            limit_memory()
            for line in commands(run, good, out, chance):
                play(line, problems)
            if values := silent_values(run, good):
                problems.append({"silent": values})
        answer.write_text(json.dumps(problems))

    answer.write_text("[]")
    status = in_a_fork(go)
    problems = json.loads(answer.read_text())
    answer.unlink()
    if status:
        problems.append({"status": status})
    after = outside(base, case)
    if changed := [
        path for path in before.keys() | after.keys() if before.get(path, 0) != after.get(path, 0)
    ]:
        problems.append({"outside": changed})
    shutil.rmtree(case)
    return [{"kind": kind, "case": number, "seed": seed, "change": told, **problem} for problem in problems]


def all_cases(kinds: list[str], count: int, seed: int, first: int = 0) -> None:
    """Play the cases of each kind and print what went wrong."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    found = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        base = Path(temporary).resolve()
        good = prepare(base)
        for kind, number in itertools.product(kinds, range(first, first + count)):
            for problem in one_case(kind, number, seed, base, good):
                found += 1
                print(json.dumps(problem), flush=True)
            if number % 100 == 99:
                print(f"{number + 1} {kind}", file=sys.stderr, flush=True)
    print(json.dumps({"cases": count * len(kinds), "problems": found}))


if __name__ == "__main__":
    faulthandler.register(signal.SIGALRM, chain=True)
    kinds, *numbers = sys.argv[1:]
    all_cases(kinds.split(","), *map(int, numbers))
