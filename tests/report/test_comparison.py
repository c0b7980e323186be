import json
from pathlib import Path

import pytest

from meshwright.errors import UsageError
from meshwright.report import compare, comparison_document, comparison_text, read_run, write_comparison
from report.runs import DESCRIPTION, write_run


@pytest.fixture
def two(tmp_path):
    faster = DESCRIPTION.replace("0.1", "0.5").replace("runs/a", "runs/b")
    scores = {40: {"test/wrong": 3.0}}
    a = write_run(tmp_path / "a", scores=scores)
    b = write_run(tmp_path / "b", (2.0, 1.0, 0.5), settings=faster)
    return compare([read_run(a), read_run(b)])


def test_only_settings_that_differ_are_told_each_argument_by_its_own_path(two):
    assert two.settings == {"optimizer.learning_rate": ["0.1", "0.5"]}
    assert two.environment == {}


def test_scores_stand_side_by_side(two):
    assert two.scores == {"loss": [1.25, 0.5], "test/wrong": [3.0, None], "test/wrong, best": [3.0, None]}


def test_a_comparison_is_text_and_strict_json(two):
    text = comparison_text(two)
    assert "optimizer.learning_rate: 0.1 | 0.5" in text
    assert "test/wrong: 3 | –" in text
    found = json.loads(json.dumps(comparison_document(two), allow_nan=False))
    assert [run["step"] for run in found["runs"]] == [40, 30]


def test_the_page_draws_all_runs_in_one_chart_and_marks_the_best(two, tmp_path):
    page = Path(write_comparison(two.runs, tmp_path / "both.html")).read_text()
    assert "a from 3 at step 10 to 1.25 at step 40; b from 2 at step 10 to 0.5 at step 30" in page
    assert '<strong><span class="mark">best </span>0.5</strong>' in page


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    runs = [read_run(write_run(tmp_path / folder / "run")) for folder in ("x", "y")]
    assert compare(runs).names == ["x/run", "y/run"]
    assert compare([runs[0], runs[0]]).names == ["run (1)", "run (2)"]


def test_one_run_is_no_comparison(tmp_path):
    with pytest.raises(UsageError, match="two runs or more"):
        compare([read_run(write_run(tmp_path))])
