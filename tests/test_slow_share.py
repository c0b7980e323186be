"""Which slow tests are run where there is no time for all."""

import math
from pathlib import Path

import slow_share
from layers import PACKAGES

PLAN, CLI, TRAIN = (f"tests/{name}/test_it.py::test" for name in ("plan", "cli", "training"))
NOT_SLOW = {"clusters", "notebooks", "typed"}  # a marker of their own
TESTS = [f"{test}[{number}]" for test in (PLAN, CLI, TRAIN) for number in range(10)]


def shares(budget, touched=frozenset(), commit="a", seconds=None):
    seconds = dict.fromkeys(TESTS, 1.0) if seconds is None else seconds
    return slow_share.share(TESTS, seconds, budget, set(touched), commit)


def test_a_share_takes_the_time_that_there_is():
    assert len(shares(7)) == 7
    assert shares(1000) == {*TESTS}
    assert shares(0) == set()


def test_tests_of_what_changed_come_first():
    assert shares(10, touched={"plan"}) == {test for test in TESTS if test.startswith(PLAN)}


def test_tests_of_the_packages_above_come_next_and_those_below_last():
    kept = shares(20, touched={"plan"})
    assert kept == {test for test in TESTS if not test.startswith(TRAIN)}


def test_what_is_left_out_changes_with_the_commit():
    by_commit = [shares(5, commit=str(number)) for number in range(100)]
    assert set().union(*by_commit) == {*TESTS}


def test_the_same_commit_has_the_same_share():
    assert shares(5) == shares(5)


def test_a_test_without_a_record_takes_the_usual_time():
    assert len(shares(20, seconds={TESTS[0]: 4.0})) == 5


def test_a_change_in_a_folder_without_a_package_is_one_of_the_packages_that_it_tries():
    paths = [
        "tests/crash/test_saving.py",
        "src/meshwright/processes/_when.py",
        "tests/processes/test_when.py",
        "docs/plan.md",
    ]
    assert slow_share.packages_touched(paths) == {"checkpoints", "base", "processes"}


def test_a_package_is_as_far_as_the_nearest_change_below():
    assert slow_share.distance({"cli"}, {"cli", "plan"}) == 0
    assert (
        0 < slow_share.distance({"plan"}, {"engine"}) < slow_share.distance({"plan"}, {"training"}) < math.inf
    )
    assert slow_share.distance({"training"}, {"cli"}) == math.inf


def test_each_folder_of_tests_is_that_of_a_package_or_in_the_table():
    packages = {*PACKAGES}
    folders = {path.parent.name for path in Path(__file__).parent.glob("*/test_*.py")}
    assert folders - NOT_SLOW <= packages | slow_share.PACKAGES_OF.keys()
    assert set().union(*slow_share.PACKAGES_OF.values()) <= packages | {"benchmarks"}
