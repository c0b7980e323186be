"""A share of the slow tests: as many as some minutes have time for, and first those near what changed last.

First come the tests of the packages that the last 20 commits touched, then those of the packages in the
nearest layers above, then all others, in an order that is another one at each commit. So what is left out
today is tried soon, and all of it each night. How long a test takes is known from `seconds.json`, which
`make test-slow` writes. Outside of a git repository the share is all of them.
"""

import hashlib
import json
import math
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from layers import PACKAGES

ROOT = Path(__file__).parents[1]
SECONDS = ROOT / "tests/seconds.json"
NUM_COMMITS = 20

PACKAGES_OF = {
    "benchmarks": {"benchmarks"},
    "crash": {"checkpoints", "base"},
    "end_to_end": {"checkpoints", "engine", "data", "processes"},
    "examples": {"engine"},
    "faults": {"launch", "processes"},
    "golden": {"checkpoints", "engine", "report"},
    "planted_faults": {"launch", "plan", "debug", "report"},
    "ports": {"engine"},
    "simulated": {"checkpoints"},
}
"""The packages that tests are of whose folder or file does not have the name of one."""


def package_of(path: str) -> str | None:
    """Return the package of a file of the repository, or its folder of tests where that is no package."""
    match = re.match(r"(?:src/meshwright|tests)/(?:test_)?(\w+)(?:/|\.py)|(benchmarks)/", path)
    return match and (match[1] or match[2])


def packages_touched(paths: Iterable[str]) -> set[str]:
    """Return the packages that files are of."""
    names = {package_of(path) for path in paths} - {None}
    return {package for name in names for package in PACKAGES_OF.get(name, {name})}


def distance(packages: Iterable[str], touched: Iterable[str]) -> float:
    """Return how many layers packages are above the nearest that was touched; infinite where none is below.

    It is 0 where one of them was touched.
    """
    layers = {package: layer for layer, package in enumerate(PACKAGES)}

    def between(upper: str, lower: str) -> float:
        above = layers.get(upper, -1) - layers.get(lower, math.inf)
        return 0 if upper == lower else above if above > 0 else math.inf

    return min((between(upper, lower) for upper in packages for lower in touched), default=math.inf)


def share(
    tests: Sequence[str], seconds: Mapping[str, float], budget: float, touched: set[str], commit: str
) -> set[str]:
    """Return the tests to run.

    Args:
      tests: The ids of all tests, as `tests/plan/test_search.py::test_name[case]`.
      seconds: How long tests take. One that is not among them is taken to be as long as these are on average.
      budget: How many seconds the tests may take together.
      touched: The packages that come first.
      commit: Draws the order of files whose packages are equally near, and that of tests in a file.
    """
    usual = sum(seconds.values()) / max(1, len(seconds))

    def drawn(name: str) -> bytes:
        return hashlib.sha256(f"{commit} {name}".encode()).digest()

    def order(test: str) -> tuple[float, bytes, bytes]:
        packages = PACKAGES_OF.get(package_of(test), {package_of(test)})
        # Tests of a file stay together, as they share fixtures, which may take longer than the tests.
        file = test.partition("::")[0]
        return distance(packages, touched), drawn(file), drawn(test)

    kept, left = set(), budget
    for test in sorted(tests, key=order):
        if seconds.get(test, usual) <= left:
            kept.add(test)
            left -= seconds.get(test, usual)
    return kept


def _git(*arguments: str) -> str | None:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return ran.stdout if ran.returncode == 0 else None


class Share:
    """Deselects the tests for which there is no time."""

    def __init__(self, minutes: float) -> None:
        self.seconds_each = 60 * minutes
        self.commit = _git("rev-parse", "HEAD")
        paths = _git("log", f"-{NUM_COMMITS}", "--format=", "--name-only") or ""
        self.touched = packages_touched(paths.splitlines())

    def pytest_report_header(self) -> str:
        if self.commit is None:
            return "slow share: all, as this is no git repository"
        return f"slow share: first the tests of {', '.join(sorted(self.touched))}"

    # After those that the options and the markers leave out.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.commit is None:
            return
        num_processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        seconds = json.loads(SECONDS.read_text())
        tests = [item.nodeid for item in items]
        kept = share(tests, seconds, self.seconds_each * num_processes, self.touched, self.commit)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
        items[:] = [item for item in items if item.nodeid in kept]


class Recorder:
    """Writes how long each test took, with its fixtures, in the process that the tests report to."""

    def __init__(self) -> None:
        self.seconds = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return  # a part would take the place of the whole record
        rounded = {test: round(seconds, 1) for test, seconds in sorted(self.seconds.items())}
        SECONDS.write_text(json.dumps(rounded, indent=0) + "\n")


def add_options(parser: pytest.Parser) -> None:
    """Add the options of a share to those of pytest."""
    parser.addoption("--share-minutes", type=float, help="run as many tests as these minutes have time for")
    parser.addoption(
        "--write-seconds", action="store_true", help=f"write how long each test takes to {SECONDS.name}"
    )


def configure(config: pytest.Config) -> None:
    """Do what the options of a share ask for."""
    minutes = config.getoption("share_minutes")
    if minutes is not None:
        if not SECONDS.is_file():
            raise pytest.UsageError(
                f"--share-minutes goes by {SECONDS}, which is not there: make test-slow writes it"
            )
        config.pluginmanager.register(Share(minutes))
    if config.getoption("write_seconds") and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Recorder())
