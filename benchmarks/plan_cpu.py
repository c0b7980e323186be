"""Steps of the text demo on CPU devices: what a plan says they take, and what they take.

    python benchmarks/plan_cpu.py

The machine is shared, so the steps are timed before and after the rates that the plan rests on are measured.
Each mesh has several processes of its own, in turns; told are medians, and the ratio furthest from one.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace

CASES = (("cpu:1", "data=1"), ("cpu:8", "data=8"), ("cpu:8", "fsdp=8"), ("cpu:8", "data=2,fsdp=2,tensor=2"))
ROUNDS, STEPS = 3, 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", nargs="*", help="hardware and mesh: only this one, once, in this process")
    if case := parser.parse_args().case:
        compare(*case)
        return
    times: dict[tuple[str, str], list[tuple[float, float]]] = {case: [] for case in CASES}
    for _ in range(ROUNDS):
        for case in CASES:
            times[case].append(_in_own_process(*case))
    print(f"{'on':<8}{'mesh':<26}{'planned ms':>12}{'taken ms':>12}{'planned / taken':>18}{'furthest':>12}")
    for (on, mesh), pairs in times.items():
        planned, taken = (1e3 * statistics.median(each) for each in zip(*pairs, strict=True))
        ratios = [planned / taken for planned, taken in pairs]
        furthest = max(ratios, key=lambda ratio: abs(ratio - 1))
        print(
            f"{on:<8}{mesh:<26}{planned:>12.0f}{taken:>12.0f}{statistics.median(ratios):>18.2f}{furthest:>12.2f}"
        )


def _in_own_process(on: str, mesh: str) -> tuple[float, float]:
    flags = f"--xla_force_host_platform_device_count={on.partition(':')[2]}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, on, mesh]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    planned, taken = map(float, done.stdout.split())
    return planned, taken


def compare(on: str, mesh: str) -> None:
    """Print what a step is planned to take and what it takes, in seconds."""
    import jax

    from meshwright import plan
    from meshwright.demo import text
    from meshwright.experiment import parts_of, some_rows
    from meshwright.sharding import make_mesh
    from meshwright.train import init_state

    experiment = replace(text.experiment(), mesh=mesh)
    rows = some_rows(experiment)
    parts = parts_of(experiment, make_mesh(mesh), rows)
    state = init_state(experiment.model, experiment.optimizer, 0, parts.layout)
    batch = jax.device_put(rows, parts.layout.batch_sharding)
    parts.step.compile(parts.target, batch)

    def timed() -> float:
        nonlocal state
        started = time.perf_counter()
        for _ in range(STEPS):
            state, metrics = parts.step(state, batch)
            jax.block_until_ready(metrics)
        return (time.perf_counter() - started) / STEPS

    timed()
    before = timed()
    planned = plan.plan(experiment, on, compiled=False).time.seconds
    print(planned, (before + timed()) / 2)


if __name__ == "__main__":
    main()
