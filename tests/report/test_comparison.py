import json
import re
from pathlib import Path

import pytest

from meshwright.errors import UsageError
from meshwright.report._comparison import compare, comparison_document, comparison_text
from meshwright.report._comparison_page import write_comparison
from meshwright.report._history import Best
from meshwright.report._run import read_run
from report.runs import DESCRIPTION, write_run


@pytest.fixture
def two(tmp_path):
    faster = DESCRIPTION.replace("0.1", "0.5").replace("runs/a", "runs/b")
    scores = {40: {"test/wrong": 3.0}}
    a = write_run(tmp_path / "a", scores=scores)
    b = write_run(tmp_path / "b", (2.0, 1.0, 0.5), settings=faster)
    return compare([read_run(a), read_run(b)])


def test_only_settings_that_differ_are_told_each_argument_by_its_own_path(two):
    assert two.description == {"optimizer.learning_rate": ["0.1", "0.5"]}
    assert two.settings == {"learning_rate": ["0.1", "0.5"]}
    assert two.environment == {}


def test_scores_stand_side_by_side(two):
    assert two.losses == [1.25, 0.5]
    assert two.scores == {"test/wrong": [Best(40, 3.0, "min"), None]}


def test_a_comparison_is_text_and_strict_json(two):
    text = comparison_text(two)
    head, first, second = (line.split() for line in text.splitlines()[:3])
    assert head == ["run", "state", "step", "learning_rate", "★", "test/wrong", "loss"]
    assert first == ["a", "killed", "40/40", "0.1", "3", "@40", "1.25"]
    assert second == ["b", "killed", "30/40", "0.5", "–", "0.5"]
    found = json.loads(json.dumps(comparison_document(two), allow_nan=False))
    assert [run["step"] for run in found["runs"]] == [40, 30]


def test_the_page_draws_all_runs_in_one_chart(two, tmp_path):
    page = Path(write_comparison(two.runs, tmp_path / "both.html")).read_text()
    assert "a from 3 at step 10 to 1.25 at step 40; b from 2 at step 10 to 0.5 at step 30" in page


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    runs = [read_run(write_run(tmp_path / folder / "run")) for folder in ("x", "y")]
    assert compare(runs).names == ["x/run", "y/run"]
    assert compare([runs[0], runs[0]]).names == ["run (1)", "run (2)"]


def test_one_run_is_no_comparison(tmp_path):
    with pytest.raises(UsageError, match="two runs or more"):
        compare([read_run(write_run(tmp_path))])


def sweep(folder, typed, *, scores=None, settings=None):
    """Write a run for each mapping of typed settings, and return what they report."""
    for i, each in enumerate(typed):
        made = write_run(
            folder / f"run{i}",
            scores={40: {"test/wrong": scores[i] if scores else float(i)}},
            settings=settings[i] if settings else DESCRIPTION.replace("0.1", each["learning_rate"]),
        )
        origin = {"target": "m:f", "settings": {"workdir": f"run{i}", **each}, "defaults": {"width": "8"}}
        (made / "experiment.json").write_text(json.dumps(origin))
    return [read_run(folder / f"run{i}") for i in range(len(typed))]


def test_settings_that_were_typed_go_by_their_name_and_hide_what_follows_from_them(tmp_path):
    found = compare(sweep(tmp_path, [{"learning_rate": "1e-1", "width": "16"}, {"learning_rate": "0.5"}]))
    assert found.settings == {"learning_rate": ["1e-1", "0.5"], "width": ["16", "8"]}
    assert list(found.description) == ["optimizer.learning_rate"]


def test_a_difference_that_does_not_follow_from_what_was_typed_is_shown(tmp_path):
    typed = [{"learning_rate": rate} for rate in ("0.1", "0.1", "0.5")]
    described = [DESCRIPTION + f"loss = m.loss(smoothing={x})\n" for x in (0.0, 0.2, 0.2)]
    found = compare(sweep(tmp_path, typed, settings=described))
    assert found.settings == {"learning_rate": ["0.1", "0.1", "0.5"], "smoothing": ["0.0", "0.2", "0.2"]}


def test_without_typed_settings_each_difference_is_shown_once_by_the_end_of_its_path(tmp_path):
    told = "loss.model.given.dim = {0}\nmodel.given.dim = {0}\nmodel.mode = {1!r}\noptimizer.1.mode = {2}\n"
    for name, values in {"a": (8, "fast", 1), "b": (16, "slow", 2)}.items():
        write_run(tmp_path / name, settings=told.format(*values))
    found = compare([read_run(tmp_path / name) for name in ("a", "b")])
    assert found.settings == {
        "dim": ["8", "16"],
        "model…mode": ["fast", "slow"],
        "optimizer…mode": ["1", "2"],
    }


def test_numbers_in_another_notation_are_the_same(tmp_path):
    found = compare(sweep(tmp_path, [{"learning_rate": "1e-1"}, {"learning_rate": "0.10"}]))
    assert found.settings == found.description == {}


def test_the_best_run_stands_first_and_runs_without_the_score_last(tmp_path):
    rates = [{"learning_rate": str(rate)} for rate in (1.0, 2.0, 3.0)]
    found = compare(sweep(tmp_path, rates, scores=[2.0, 1.0, float("nan")]))
    assert (found.names, found.main_score) == (["run1", "run0", "run2"], "test/wrong")


def test_the_page_of_many_runs_is_one_table_that_can_be_sorted(tmp_path):
    runs = sweep(tmp_path, [{"learning_rate": f"0.0{i}"} for i in range(1, 13)])
    page = Path(write_comparison(runs, tmp_path / "many.html")).read_text()
    (table,) = re.findall(r'<table class="sortable">.*?</table>', page, re.S)
    heads = re.findall(r"<th (.*?)><button type=\"button\">(.*?)</button>", table)
    names = [name.replace("<wbr>", "") for _, name in heads]
    assert names == ["run", "★ test/wrong", "learning_rate", "loss", "state", "steps", "trained"]
    assert 'aria-sort="ascending"' in heads[1][0]
    rows = re.findall(r"<tr class=\"r\d+\">(.*?)</tr>", table)
    assert [re.search(r'data-key="([^"]*)"', row)[1] for row in rows] == [f"run{i}" for i in range(12)]
    assert [' checked="checked"' in row for row in rows] == [True] * 8 + [False] * 4
    assert '<strong><span class="mark">best </span>0</strong>' in rows[0]
    assert page.count("<script") == page.count("<script>") == 1


def test_the_charts_of_many_runs_name_the_best_and_draw_all(tmp_path):
    runs = sweep(tmp_path, [{"learning_rate": f"0.0{i}"} for i in range(1, 13)])
    page = Path(write_comparison(runs, tmp_path / "many.html")).read_text()
    loss = next(figure for figure in page.split("<figure>") if "<b>loss</b>" in figure)
    assert re.findall(r'class="label t\d (r\d+)"', loss) == [f"r{i}" for i in range(8)]
    assert set(re.findall(r'class="curve t\d (r\d+)"', loss)) == {f"r{i}" for i in range(12)}
