"""Fix the speeds of `meshwright plan` for H100s on published runs, by least squares.

    python benchmarks/fit_rates.py

The runs are those of `published_runs.py` on H100s that are marked `fit`, and the two that fix the speed of
MosaicML's attention kernel. Each is traced once. Then every point of a grid of five shares is priced: the
best has the least sum of the squared logarithms of planned by published MFU. Runs marked `judge` take no
part; they are planned at the end by the best point. What it found is in `src/meshwright/plan/_roofline.py`.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from published_runs import (
    HALVES,
    OF_THE_KERNEL,
    Run,
    experiment_of,
    published_mfu,
    rates_of,
    spearman,
    with_idle_stages,
)

import meshwright as mw
from meshwright.plan import _site as site
from meshwright.plan._roofline import published_rates

GRID = {
    "products": np.arange(0.5, 0.76, 0.025),
    "attention": np.arange(0.2, 0.85, 0.1),
    "overlap": np.arange(0.3, 1.05, 0.1),
    "memory_overlap": np.arange(0, 1.05, 0.25),
    "triton": np.arange(0.2, 0.45, 0.05),
}
"""Shares that are tried: of the peak, in products; of that, in fused attention; of the batch axes' traffic
that hides; of the memory's time that hides; of products' speed, in MosaicML's attention kernel."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    tiny = parser.parse_args().tiny
    on_h100 = [run for run in HALVES["fit"] if run.on.startswith("h100")]
    fitted_runs, judged_runs = (*on_h100, *OF_THE_KERNEL), HALVES["judge"]
    grid = GRID
    if tiny:
        fitted_runs, judged_runs = on_h100[:2], judged_runs[:2]
        grid = {name: shares[::6] for name, shares in GRID.items()}
    fitted = [(run, mfu_of(run)) for run in fitted_runs]
    points = [dict(zip(grid, map(float, point), strict=True)) for point in itertools.product(*grid.values())]
    errors = sorted(((squares(fitted, point), number) for number, point in enumerate(points)))
    print(f"{len(fitted)} runs, {len(points)} points; the best ten:")
    for error, number in errors[:10]:
        print(f"{error:8.4f}  " + "  ".join(f"{name} {share:.3g}" for name, share in points[number].items()))
    best = points[errors[0][1]]
    judged = [(run, mfu_of(run)) for run in judged_runs]
    planned = np.array([mfu(best) for _, mfu in judged])
    published = np.array([run.mfu for run, _ in judged])
    print(
        f"of the half `judge`, the furthest is off by {max(abs(planned / published - 1)):.0%}, "
        f"and the rank correlation is {spearman(planned, published):.2f}"
    )


def mfu_of(run: Run) -> Callable[[dict[str, float]], float]:
    """Return the function of a point of the grid that returns the run's MFU."""
    asked: list[tuple] = []
    step_time = site.step_time

    def heard(*arguments, **more):
        asked.append((arguments, more))
        return step_time(*arguments, **more)

    site.step_time = heard
    try:
        devices = mw.plan.plan_step(
            experiment_of(run), run.on, compiled=False, rates=rates_of(run)
        ).num_devices
    finally:
        site.step_time = step_time
    (products, other, exchanges, rates), more = asked[-1]
    products, of_chip = list(products), published_rates(mw.plan.hardware_named(run.on).chip)
    peak = mw.observe.peak_flops(mw.plan.hardware_named(run.on).chip.device_kind, "bfloat16")
    at_once = published_mfu(run, 1.0, devices * run.stages)

    def mfu(point: dict[str, float]) -> float:
        if not run.on.startswith("h100"):
            return at_once / (
                step_time(products, other, exchanges, rates, **more).seconds * with_idle_stages(run)
            )
        faster = point["products"] * peak / of_chip.flops["bfloat16"]
        priced = replace(
            rates,
            flops={dtype: faster * speed for dtype, speed in rates.flops.items()},
            attention=point["attention"] if run.attention is None else point["triton"],
            overlap=point["overlap"],
            memory_overlap=point["memory_overlap"],
        )
        seconds = step_time(products, other, exchanges, priced, **more).seconds
        return at_once / (seconds * with_idle_stages(run))

    return mfu


def squares(runs: Iterable[tuple[Run, Callable]], point: dict[str, float]) -> float:
    """Return the sum of the squared logarithms of planned by published MFU."""
    return sum(math.log(mfu(point) / run.mfu) ** 2 for run, mfu in runs)


if __name__ == "__main__":
    main()
