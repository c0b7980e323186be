"""What docs/experiments.md shows is what happens."""

import fnmatch
import json
import re
from pathlib import Path

import pytest

import compiling
import meshwright as mw

PAGE = (Path(__file__).parents[3] / "docs/experiments.md").read_text()


@pytest.fixture(scope="module")
def experiment():
    names = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.S)[1], names)
    return names["experiment"]


@pytest.fixture(scope="module")
def run(experiment, tmp_path_factory):
    run = tmp_path_factory.mktemp("page")
    with compiling.kept_in(None):
        mw.run(experiment(workdir=str(run)), origin={"target": "page:experiment"})
    return run


def test_the_experiment_is_described_as_the_page_says(experiment):
    shown = re.search(r"^```\n((?:\S+ = .*\n)+)```$", PAGE, re.M)[1].splitlines()
    assert set(shown) <= set(mw.engine.describe(experiment()).splitlines())


def test_the_run_directory_holds_what_the_page_says_and_nothing_else(run):
    files = PAGE.partition("## The run directory\n")[2].partition("\n### ")[0]
    patterns = re.findall(r"^\| `([^`]+)` \|", files, re.M)
    found = [path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()]
    unsaid = [name for name in found if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    unseen = [pattern for pattern in patterns if not fnmatch.filter(found, pattern)]
    # This run began from no checkpoint, saw no spike and no NaN, and does not go on.
    absent = ["began_from.txt", "spikes.jsonl", "nan/step_*", "board/process-*.json"]
    assert (unsaid, unseen) == ([], absent)


def test_its_files_hold_what_the_page_says(run):
    assert "microbatches = 2\n" in (run / "experiment.txt").read_text()  # as the mesh rule left it
    outcome = json.loads((run / "outcome.json").read_text())
    assert outcome.keys() == {"ended", "step", "scores", "seconds"}
    assert {"mesh", "packages", "devices", "command", "commit"} <= json.loads(
        (run / "environment.json").read_text()
    ).keys()
    assert "params/w" in (run / "state.txt").read_text()
    assert all({"step", "time"} <= report.keys() for report in mw.observe.read_jsonl(run / "metrics.jsonl"))
    assert "1 array of 32 parameters" in (run / "logs/process-00000.log").read_text()
