"""Steps of the text demo on CPU devices: what a plan says they take, and what they take.

    python benchmarks/plan_cpu.py

Rates are measured anew for each plan, next to the steps, as the machine is shared. Each mesh has a process of
its own; what is told is the median over the rounds of the ratio of the two.
"""

import os
import statistics
import subprocess
import sys
import time

MESHES = {"cpu:1": ("data=1",), "cpu:8": ("data=8", "fsdp=8", "data=2,fsdp=2,tensor=2")}
ROUNDS, STEPS = 7, 10


def main() -> None:
    print(
        f"{'on':<8}{'mesh':<26}{'planned ms':>12}{'taken ms':>12}{'planned / taken':>18}{'worst round':>14}"
    )
    for on, meshes in MESHES.items():
        for mesh in meshes:
            flags = f"--xla_force_host_platform_device_count={on.partition(':')[2]}"
            environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
            subprocess.run([sys.executable, __file__, on, mesh], env=environment, check=True)


def compare(on: str, mesh: str) -> None:
    import jax

    from meshwright import plan
    from meshwright.demo import text
    from meshwright.experiment import parts_of, some_rows
    from meshwright.sharding import make_mesh
    from meshwright.train import init_state

    experiment = text.experiment()
    experiment = type(experiment)(**{**vars(experiment), "mesh": mesh})
    rows = some_rows(experiment)
    parts = parts_of(experiment, make_mesh(mesh), rows)
    state = init_state(experiment.model, experiment.optimizer, 0, parts.layout)
    batch = jax.device_put(rows, parts.layout.batch_sharding)
    parts.step.compile(parts.target, batch)
    planned, taken = [], []
    for _ in range(ROUNDS):
        planned.append(plan.plan(experiment, on, compiled=False).time.seconds)
        started = time.perf_counter()
        for _ in range(STEPS):
            state, metrics = parts.step(state, batch)
            jax.block_until_ready(metrics)
        taken.append((time.perf_counter() - started) / STEPS)
    ratios = [a / b for a, b in zip(planned, taken, strict=True)]
    middle = [1e3 * statistics.median(each) for each in (planned, taken)]
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    print(
        f"{on:<8}{mesh:<26}{middle[0]:>12.0f}{middle[1]:>12.0f}{statistics.median(ratios):>18.2f}{worst:>14.2f}"
    )


if __name__ == "__main__":
    compare(*sys.argv[1:]) if len(sys.argv) > 1 else main()
