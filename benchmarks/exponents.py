"""By which power costs grow: with arrays, rules, runs, report lines, evaluations, mesh axes and processes.

Each cost is measured at several sizes, in CPU seconds of the process and of those that it starts, the least
of a few times. A power is the slope between the two largest sizes on double logarithmic axes: 1 is in
proportion. What is above the bar fails, but for what takes less than 50 ms, which tells nothing.
"""

import argparse
import contextlib
import gc
import io
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw
from meshwright.base import _tree as tree
from meshwright.base._description import values
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._inspect import verify
from meshwright.checkpoints._formats._open import open_source
from meshwright.engine._describe import describe
from meshwright.observe._jsonl import jsonl, read_jsonl
from meshwright.report._page import write_page
from meshwright.report._run import read_run
from meshwright.report._summary import list_runs, summary
from meshwright.training._statistics import describe_state, state_sizes

MAX_POWER = 1.2
ARRAYS, MANY, FEW = (100, 400, 1600), (100, 1000, 10_000), (1, 8, 64)  # more than 64 are not described

Act = Callable[[], object]
Cost = Callable[[int, Path], dict[str, Act]]
"""What is done at a size, by name; an empty folder is given."""


def layers(num_arrays: int) -> dict[str, Any]:
    return {f"layer{i}": {"kernel": jnp.eye(8), "bias": jnp.zeros(8)} for i in range(num_arrays // 2)}


def loss(params: Any, batch: Any, key: Any) -> Any:
    x = batch["x"]
    for layer in params.values():
        x = x @ layer["kernel"] + layer["bias"]
    return jnp.mean(x**2)


BATCH = {"x": np.ones((8, 8), np.float32)}


def of_arrays(size: int, folder: Path) -> dict[str, Act]:
    init, tx = lambda key: layers(size), optax.adam(0.1)
    layout = mw.Layout(mw.make_mesh("data=2,fsdp=4"))
    target = mw.training.abstract_state(init, tx, layout)
    state = mw.training.init_state(init, tx, 0, layout)
    norms = mw.make_step(loss, tx, layout, norms=".*")
    checkpoints = Checkpoints(folder / "c").__enter__()
    steps = iter(range(1, 100))

    def save() -> None:
        checkpoints.save(next(steps), state)
        checkpoints.wait()

    save()
    newest = lambda: open_source(folder / "c")  # noqa: E731
    return {
        "tree: names, differences": lambda: tree.differences(target, target),
        "abstract_state": lambda: mw.training.abstract_state(init, tx, layout),
        "Layout.shardings": lambda: layout.shardings(target.params),
        "Layout.explain": lambda: layout.explain(target.params),
        "describe_state, state_sizes": lambda: (describe_state(target), state_sizes(target)),
        "mw.infer_rules": lambda: mw.infer_rules(target.params, loss, BATCH, jax.random.key(0)),
        "trace a step": lambda: mw.make_step(loss, tx, layout).trace(target, BATCH),
        "trace a step, norms of all": lambda: norms.trace(target, BATCH),
        "save": save,
        "read a manifest": newest,
        "restore": lambda: restore(newest(), target),
        "verify": lambda: verify(sorted((folder / "c").glob("step_*"))[-1]),
    }


def of_rules(size: int, folder: Path) -> dict[str, Act]:
    rules = tuple(mw.parallel.match(mw.parallel.optional(f"unknown{i}"), "fsdp") for i in range(size))
    layout = mw.Layout(mw.make_mesh("data=2,fsdp=4"), rules)
    params = jax.eval_shape(lambda: layers(40))
    return {
        "Layout.shardings of 40 arrays": lambda: layout.shardings(params),
        "Layout.explain of 40 arrays": lambda: layout.explain(params),
    }


def report_line(step: int) -> dict[str, float]:
    return dict.fromkeys(("loss", "grad_norm", "accuracy", "examples_per_second"), 1.0 / (step + 1))


def write_run(directory: Path, num_lines: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"step": i, "time": 1e9 + i, **report_line(i)}) for i in range(1, num_lines + 1))
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "experiment.txt").write_text("max_steps = 10\n")


def of_runs(size: int, folder: Path) -> dict[str, Act]:
    for i in range(size):
        write_run(folder / f"run{i}", 3)
    return {"list_runs": lambda: list_runs(folder)}


def of_lines(size: int, folder: Path) -> dict[str, Act]:
    write_run(folder, size)
    best = mw.engine.early_stopping("loss", "min", patience=size)
    told = {report["step"]: report for report in read_jsonl(folder / "metrics.jsonl")}
    return {
        "read_run, summary": lambda: summary(read_run(folder)),
        "write_page": lambda: write_page(read_run(folder)),
        "read_jsonl": lambda: read_jsonl(folder / "metrics.jsonl"),
        "open metrics.jsonl at a restart": lambda: jsonl(folder / "metrics.jsonl", resume_step=size // 2 * 2),
        "early_stopping of a history": lambda: best(told),
    }


def of_evaluations(size: int, folder: Path) -> dict[str, Act]:
    examples = {"x": np.ones((16, 8), np.float32)}
    measure = lambda params, batch: {"loss": (batch["x"] @ params["w"]).sum(-1)}  # noqa: E731
    experiment = mw.Experiment(
        workdir=str(folder / "run"),
        model=lambda key: {"w": jnp.ones((8, 2))},
        loss=lambda params, batch, key: measure(params, batch)["loss"].mean(),
        optimizer=optax.sgd(0.01),
        input=mw.Input(examples, 16),
        evaluations={
            f"test{i}": mw.Evaluation(measure, examples, when=1, batch_size=16) for i in range(size)
        },
        max_steps=2,
        logging=mw.Logging(every=1),
        compile=mw.Compile(cache=False),
    )
    text = describe(experiment)

    def run() -> None:
        shutil.rmtree(folder / "run", ignore_errors=True)
        with contextlib.redirect_stderr(io.StringIO()):
            mw.run(experiment)

    return {
        "describe": lambda: describe(experiment),
        "description.values": lambda: values(text),
        "mw.run": run,
    }


def of_axes(size: int, folder: Path) -> dict[str, Act]:
    text = ",".join(["data=8", *(f"a{i}=1" for i in range(size - 1))])
    layout = mw.Layout(mw.make_mesh(text))
    params = jax.eval_shape(lambda: layers(400))
    return {
        "make_mesh": lambda: mw.make_mesh(text),
        "Layout.shardings of 400 arrays": lambda: layout.shardings(params),
    }


PROCESS = (
    "import jax; from meshwright.processes import _internal as processes; processes.start_processes(); "
    "processes.gather(1); processes.agree(1)"
)


def of_processes(size: int, folder: Path) -> dict[str, Act]:
    command = [sys.executable, "-m", "meshwright", "launch", "local", "-n", str(size), "--"]

    def launch() -> None:
        environment = {**os.environ, "XLA_FLAGS": ""}
        program = [*command, sys.executable, "-c", PROCESS]
        subprocess.run(program, check=True, capture_output=True, env=environment)

    return {"launch, roll call, gather, agree": launch}


COSTS: dict[str, tuple[Cost, tuple[int, ...]]] = {
    "arrays": (of_arrays, ARRAYS),
    "rules": (of_rules, MANY),
    "runs": (of_runs, (10, 100, 1000)),
    "report lines": (of_lines, MANY),
    "evaluations": (of_evaluations, FEW),
    "axes": (of_axes, (1, 4, 16)),
    "processes": (of_processes, (1, 2, 4, 8)),
}


def seconds_of(act: Act, times: int) -> float:
    """Return the CPU seconds that it takes, its children's among them: the least of a few times."""
    found = []
    for _ in range(times):
        gc.collect()
        gc.disable()  # as `timeit` does: it looks at what was made before, too
        before = spent()
        act()
        found.append(spent() - before)
        gc.enable()
        if found[-1] > 3:
            break
    return min(found)


def spent() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measured(kind: str, sizes: tuple[int, ...], times: int) -> Iterator[tuple[str, dict[int, float]]]:
    cost, _ = COSTS[kind]
    found: dict[str, dict[int, float]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            for name, act in cost(size, Path(folder)).items():
                act()  # what is made once and kept is not counted
                found.setdefault(name, {})[size] = seconds_of(act, times)
    yield from found.items()


def power_of(found: dict[int, float]) -> float:
    """Return the slope between the two largest sizes."""
    (small, few), (large, many) = sorted(found.items())[-2:]
    return math.log(many / few) / math.log(large / small)


def main() -> None:
    parser = argparse.ArgumentParser(description="By which power costs grow.")
    parser.add_argument("--kinds", nargs="+", default=list(COSTS), choices=list(COSTS))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="for every number measured")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    all_found: dict[str, dict[str, dict[int, float]]] = {}
    above: list[str] = []
    for kind in options.kinds:
        sizes, times = COSTS[kind][1], options.times
        if options.tiny:
            sizes, times = (1, 2) if kind == "processes" else (2, 4), 1
        print(f"\n{kind:38}" + "".join(f"{size:>10}" for size in sizes) + f"{'power':>8}")
        for name, found in measured(kind, sizes, times):
            all_found.setdefault(kind, {})[name] = found
            power = power_of(found)
            is_above = power > MAX_POWER and max(found.values()) > 0.05
            above += [name] if is_above else []
            seconds = "".join(f"{each:10.4f}" for each in found.values())
            print(f"  {name:36}{seconds}{power:8.2f}{'  ✗' if is_above else ''}")
    if options.json:
        heading = {"date": date.today().isoformat(), "jax": jax.__version__}
        options.json.write_text(json.dumps(heading | {"cpu_seconds": all_found}, indent=2))
    if options.tiny:
        return
    print(f"\n  {'✗' if above else '✓'} bar: no power above {MAX_POWER}")
    sys.exit(bool(above))


if __name__ == "__main__":
    main()
