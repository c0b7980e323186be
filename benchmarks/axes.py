"""Which axes a search finds for models of 1 to 405 billion parameters, and how long it takes.

    python benchmarks/axes.py                   # all: some minutes
    python benchmarks/axes.py "405 B" 256       # those that have one of these words
    python benchmarks/axes.py --write           # into the table of docs/how-to/which-axes.md

Everything is estimated from traced steps: no compiler and no accelerator is needed. Every layer keeps
nothing, unless the search finds something better. Beside each stands the best plan without the axes
`sequence`, `pipeline` and `expert`, if one fits. There is no bar: the seconds are told.
"""

import argparse
import functools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import optax
from benchmarks.models import mixture

import meshwright as mw
from meshwright.base._numbers import human_bytes
from meshwright.lm._models import decoder
from meshwright.plan._changes import Change

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "which-axes.md"
MARKS = "<!-- from benchmarks/axes.py -->\n", "<!-- to here -->\n"
ADDED = {"sequence", "pipeline", "expert"}


@dataclass(frozen=True)
class Case:
    """A model, its batch and its hardware."""

    name: str
    model: str
    """A name of `decoder.config`, or `mixture`."""
    rows: int
    length: int
    on: str

    @property
    def title(self) -> str:
        return f"{self.name}, {self.rows:,} rows of {self.length:,}, {self.on}"


CASES = (
    Case("0.9 M", "tiny", 64, 512, "h100:8"),
    Case("1 B", "llama-3-1b", 64, 8192, "h100:8"),
    Case("8 B", "llama-3-8b", 64, 8192, "h100:8"),
    Case("8 B", "llama-3-8b", 16, 131_072, "h100:8x8"),
    Case("8 B", "llama-3-8b", 4, 1_048_576, "h100:8x8"),
    Case("70 B", "llama-3-70b", 512, 8192, "h100:32x8"),
    Case("70 B", "llama-3-70b", 32, 131_072, "h100:32x8"),
    Case("405 B", "llama-3-405b", 512, 8192, "h100:64x8"),
    Case("405 B", "llama-3-405b", 2048, 8192, "h100:2048x8"),
    Case("405 B", "llama-3-405b", 128, 131_072, "h100:2048x8"),
    Case("157 B, 256 experts", "mixture", 256, 4096, "h100:2x8"),
    Case("157 B, 256 experts", "mixture", 1024, 4096, "h100:8x8"),
    Case("157 B, 256 experts", "mixture", 1024, 4096, "h100:32x8"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="only the cases that have one of these words")
    parser.add_argument("--write", action="store_true", help="write the table into docs/how-to/which-axes.md")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    asked = parser.parse_args()
    wanted = ["0.9 M"] if asked.tiny else asked.words
    cases = [case for case in CASES if not wanted or any(word in case.title for word in wanted)]
    print(f"{'':<48}{'plans':>6}{'core s':>8}  best, peak, step, MFU", flush=True)
    lines = [row(case, shown(case)) for case in cases]
    table = "".join(f"{line}\n" for line in [*HEAD, *lines])
    if asked.write:
        PAGE.write_text(written(PAGE.read_text(), table))
    print(f"\n{table}")


def shown(case: Case) -> list[Change]:
    """Search for a case, print what was found, and return it."""
    started = time.process_time()
    found = mw.plan._internal.search(mw.plan._internal.site_of(experiment_of(case), case.on))
    seconds = time.process_time() - started
    print(f"{case.title:<48}{len(found):>6}{seconds:>8.1f}  {found[0]}, {figures(found[0])}", flush=True)
    return found


def experiment_of(case: Case) -> mw.Experiment:
    is_mixture = case.model == "mixture"
    cfg = mixture.Config() if is_mixture else decoder.config(case.model)
    tokens = np.broadcast_to(np.int32(0), (case.rows, case.length + 1))
    return mw.Experiment(
        workdir="runs/axes",
        rules=None if is_mixture else decoder.RULES,
        model=functools.partial((mixture if is_mixture else decoder).init, cfg),
        loss=functools.partial(mixture.loss, cfg)
        if is_mixture
        else functools.partial(decoder.loss, cfg, remat="nothing"),
        optimizer=optax.adamw(3e-4),
        input=mw.Input({"tokens": tokens}, batch_size=case.rows),
        max_steps=100,
        compute_dtype="bfloat16",
    )


HEAD = (
    "| model | rows of tokens | on | the search finds | without `sequence`, `pipeline`, `expert` |",
    "|---|---|---|---|---|",
)


def row(case: Case, found: Sequence[Change]) -> str:
    """Return a line of the page's table."""
    best = found[0]
    plain = next((x for x in found if ADDED.isdisjoint(x.plan.mesh) and x.plan.memory.fits), None)
    beside = "the same" if plain is best else "nothing fits" if plain is None else told(plain)
    where = f"`{case.on}`"
    return f"| {case.name} | {case.rows:,} of {case.length:,} | {where} | {told(best)} | {beside} |"


def told(change: Change) -> str:
    if not change.plan.memory.fits:
        return f"nothing fits; least: `{change}`, {human_bytes(change.plan.memory.peak)}"
    return f"`{change}`: {figures(change)}"


def figures(change: Change) -> str:
    plan = change.plan
    mfu = "" if plan.mfu is None else f", MFU {plan.mfu:.0%}"
    return f"{human_bytes(plan.memory.peak)}, {mw.base._internal.seconds_text(plan.time.seconds)}{mfu}"


def written(page: str, table: str) -> str:
    """Return the page with the table between its marks."""
    before, _, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}{table}{MARKS[1]}{after}"


if __name__ == "__main__":
    main()
