"""The list of runs."""

import json
import os
from pathlib import Path

import pytest

from meshwright.errors import InputError, UsageError
from meshwright.report._run import read_run
from meshwright.report._summary import list_runs, runs_table, sort_runs
from report.runs import write_run

FINISHED = {"ended": "finished", "step": 40, "scores": {}, "seconds": 1.0}


def test_runs_are_listed_the_one_that_reported_last_first(tmp_path):
    for name, time in (("old", 100), ("new", 300), ("deep/er", 200)):
        run = write_run(tmp_path / name, (1.0,), outcome=FINISHED)
        (run / "metrics.jsonl").write_text(f'{{"step": 10, "time": {time}, "loss": 1.0}}\n')
    assert [each["run"] for each in list_runs(tmp_path)] == [
        str(tmp_path / name) for name in ("new", "deep/er", "old")
    ]


def test_other_folders_and_what_lies_in_runs_are_passed_over(tmp_path):
    write_run(tmp_path / "run" / "inner")
    write_run(tmp_path / "run")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("x")
    write_run(tmp_path / ".hidden")
    assert [each["run"] for each in list_runs(tmp_path)] == [str(tmp_path / "run")]
    assert [each["run"] for each in list_runs(tmp_path / "run")] == [str(tmp_path / "run")]


def test_the_table_says_how_each_fares(tmp_path):
    write_run(tmp_path / "a", scores={20: {"test/wrong": 3.0}}, outcome=FINISHED)
    head, row, legend = runs_table(list_runs(tmp_path)).splitlines()
    assert head.split()[:3] == ["run", "state", "step"]
    words = ["finished", "40/40", "1.25", "★", "test/wrong", "3", "@20"]
    assert row.split()[1 : 1 + len(words)] == words
    assert legend == "★ score that checkpoints are kept by, or that ends a run"


@pytest.fixture
def three(tmp_path):
    """Three runs: with the scores 3 and 1, and one without, of two typed learning rates."""
    for name, score, rate in (("a", 3.0, "1e-2"), ("b", 1.0, "0.1"), ("c", None, None)):
        run = write_run(tmp_path / name, scores={20: {"test/wrong": score}} if score else ())
        if rate:
            origin = {"target": "m:f", "settings": {"learning_rate": rate}, "defaults": {}}
            (run / "experiment.json").write_text(json.dumps(origin))
    return list_runs(tmp_path)


def names(runs):
    return [Path(run["run"]).name for run in runs]


def test_runs_are_sorted_by_a_score_the_best_first_and_those_without_it_last(three):
    assert names(sort_runs(three, "test/wrong")) == ["b", "a", "c"]
    assert names(sort_runs(three, "test/wrong:max")) == ["a", "b", "c"]
    with pytest.raises(UsageError, match=r"higher values of .steps_per_second. are better.\n.*:min or"):
        sort_runs(three, "steps_per_second")


def test_settings_and_scores_are_shown_in_columns(three):
    table = runs_table(
        sort_runs(three, "test/wrong"), columns=["learning_rate", "test/wrong", "num_checkpoints"]
    )
    cells = [line.split() for line in table.splitlines()[:-1]]
    assert cells[0][-3:] == ["learning_rate", "test/wrong", "num_checkpoints"]
    assert [row[-3:] for row in cells[1:3]] == [["0.1", "1", "1"], ["1e-2", "3", "1"]]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("lerning_rate", "Did you mean 'learning_rate'.*\n  Settings: learning_rate"),
        ("test/worng", "Did you mean 'test/wrong'"),
    ],
)
def test_a_name_that_no_run_has_is_told_with_the_nearest(name, told, three):
    with pytest.raises(UsageError, match=told):
        runs_table(three, columns=[name])


def test_a_setting_is_no_score_to_sort_by(three):
    with pytest.raises(UsageError, match="no run has a score 'max_steps'"):
        sort_runs(three, "max_steps")


def test_a_name_that_several_settings_have_is_told_with_their_paths(tmp_path):
    write_run(tmp_path / "a", settings="a.size = 1\nb.size = 2\n")
    with pytest.raises(UsageError, match=r"several settings are called size.*\n    a.size\n    b.size"):
        runs_table(list_runs(tmp_path), columns=["size"])


def test_what_is_wrong_with_a_run_stands_below_what_is_known_of_it(tmp_path):
    run = write_run(tmp_path / "a", outcome=FINISHED)
    with (run / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")
    row, below = runs_table(list_runs(tmp_path)).splitlines()[1:]
    assert row.split()[1:4] == ["finished,", "damaged", "40/40"]
    assert "metrics.jsonl, line 6: expected a report" in below


def test_a_folder_that_cannot_be_looked_into_is_listed_as_damaged(tmp_path, monkeypatch):
    def scandir(path, scandir=os.scandir):
        if str(path).endswith("/locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    write_run(tmp_path / "a")
    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "scandir", scandir)
    found = {each["run"]: each["state"] for each in list_runs(tmp_path)}
    assert found == {str(tmp_path / "a"): "killed", str(tmp_path / "locked"): "damaged"}


def test_a_run_that_may_not_be_looked_into_is_an_error_that_says_so(tmp_path, monkeypatch):
    def denied(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", denied)
    with pytest.raises(InputError, match=r"Permission denied.*\n  Check"):
        read_run(tmp_path)
    assert [each["state"] for each in list_runs(tmp_path)] == ["damaged"]


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path, monkeypatch):
    def times_back(directory):
        if directory.name == "b":
            raise FileNotFoundError("removed meanwhile")
        return []

    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    monkeypatch.setattr("meshwright.report._run.times_back", times_back)
    assert {each["run"][-1]: each["state"] for each in list_runs(tmp_path)} == {"a": "killed", "b": "damaged"}
    assert "removed meanwhile" in runs_table(list_runs(tmp_path))
