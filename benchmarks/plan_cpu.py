"""Steps of the text demo on CPU devices: what a plan says they take, and what they take.

    python benchmarks/plan_cpu.py

The machine is shared, so the steps are timed before and after the rates that the plan rests on are measured.
Each mesh has several processes of its own, in turns; told are medians, and the ratio furthest from one. The
bar: the median of each mesh within 30 %.
"""

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import replace

CASES = (("cpu:1", "data=1"), ("cpu:8", "data=8"), ("cpu:8", "fsdp=8"), ("cpu:8", "data=2,fsdp=2,tensor=2"))
ROUNDS, STEPS = 3, 10
OFF = 0.3
SMALL = {"num_steps": 1, "layers": 1, "length": 16}  # for `--tiny`


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", nargs="*", help="hardware and mesh: only this one, once, in this process")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    if options.case:
        compare(*options.case, **SMALL if options.tiny else {})
        return
    cases, rounds, more = ([("cpu:2", "data=2")], 1, ("--tiny",)) if options.tiny else (CASES, ROUNDS, ())
    times: dict[tuple[str, str], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            times[case].append(_in_own_process(*case, *more))
    is_missed = False
    print(f"{'on':<8}{'mesh':<26}{'planned ms':>12}{'taken ms':>12}{'planned / taken':>18}{'furthest':>12}")
    for (on, mesh), pairs in times.items():
        planned, taken = (1e3 * statistics.median(each) for each in zip(*pairs, strict=True))
        ratios = [planned / taken for planned, taken in pairs]
        furthest = max(ratios, key=lambda ratio: abs(ratio - 1))
        print(
            f"{on:<8}{mesh:<26}{planned:>12.0f}{taken:>12.0f}{statistics.median(ratios):>18.2f}{furthest:>12.2f}"
        )
        is_missed |= abs(statistics.median(ratios) - 1) > OFF
    if is_missed and not options.tiny:
        sys.exit(f"missed: within {OFF:.0%}")


def _in_own_process(*case: str) -> tuple[float, float]:
    command = [sys.executable, __file__, *case]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    planned, taken = map(float, done.stdout.split())
    return planned, taken


def compare(on: str, mesh: str, *, num_steps: int = STEPS, **settings: int) -> None:
    """Print what a step is planned to take and what it takes, in seconds."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", int(on.partition(":")[2]))

    from meshwright.cli.demo import text
    from meshwright.engine._experiment._compile_ahead import some_rows
    from meshwright.engine._experiment._parts import parts_of
    from meshwright.parallel._mesh import make_mesh
    from meshwright.plan import _internal as plan
    from meshwright.training._state import init_state

    experiment = replace(text.experiment(**settings), mesh=mesh)
    rows = some_rows(experiment)
    parts = parts_of(experiment, make_mesh(mesh), rows)
    state = init_state(experiment.model, experiment.optimizer, 0, parts.layout)
    batch = jax.device_put(rows, parts.layout.batch_sharding)
    parts.step.compile(parts.target, batch)

    def timed() -> float:
        nonlocal state
        started = time.perf_counter()
        for _ in range(num_steps):
            state, metrics = parts.step(state, batch)
            jax.block_until_ready(metrics)
        return (time.perf_counter() - started) / num_steps

    timed()
    before = timed()
    planned = plan.plan_step(experiment, on, compiled=False).time.seconds
    print(planned, (before + timed()) / 2)


if __name__ == "__main__":
    main()
