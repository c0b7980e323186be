"""`meshwright report` and `meshwright runs` as a shell sees them."""

import json

import pytest

from meshwright.cli import main
from report.runs import write_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name)
    return tmp_path


def test_report_writes_the_page_into_the_run_and_says_where(folder, capsys):
    assert main(["report", "runs/a"]) == 0
    out = capsys.readouterr().out
    assert "40 of 40 steps" in out
    assert out.splitlines()[-1] == "runs/a/report.html"
    assert (folder / "runs/a/report.html").read_text().startswith("<!doctype html>")


def test_report_of_several_writes_one_page_here(folder, capsys):
    assert main(["report", "runs/a", "runs/b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["report"], len(found["runs"])) == ("comparison.html", 2)
    assert (folder / "comparison.html").exists()


def test_report_writes_to_another_place(folder, capsys):
    assert main(["report", "runs/a", "--to", "other.html"]) == 0
    assert (folder / "other.html").exists()
    assert not (folder / "runs/a/report.html").exists()


def test_a_place_that_cannot_be_written_exits_with_2(folder, capsys):
    assert main(["report", "runs/a", "--to", "no/such/folder/x.html"]) == 2
    assert "the page cannot be written to no/such/folder/x.html" in capsys.readouterr().err


def test_a_page_that_cannot_be_put_in_place_leaves_nothing_behind(folder, capsys):
    (folder / "taken").mkdir()
    assert main(["report", "runs/a", "--to", "taken"]) == 2
    assert not [*folder.glob(".*")]


def test_report_of_no_run_exits_with_3(folder, capsys):
    assert main(["report", "runs"]) == 3
    assert "runs is not a run" in capsys.readouterr().err


def test_runs_lists_those_below_runs_unless_told_otherwise(folder, capsys):
    assert main(["runs"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["runs", "runs/a", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert (found["state"], found["step"], found["newest"]["loss"]) == ("killed", 40, 1.25)


def test_runs_of_a_folder_without_any_says_so_and_of_none_exits_with_3(folder, capsys):
    (folder / "empty").mkdir()
    assert main(["runs", "empty"]) == 0
    assert capsys.readouterr().out == "no runs below empty\n"
    assert main(["runs", "nowhere"]) == 3
    assert "there is no directory nowhere" in capsys.readouterr().err


def test_a_directory_may_be_named_as_an_address_of_files(folder):
    assert main(["runs", f"file://{folder}/runs"]) == 0


def test_runs_are_sorted_and_their_settings_shown(folder, capsys):
    write_run(folder / "runs" / "c", (0.5,))
    assert main(["runs", "--sort", "loss", "--columns", "max_steps,learning_rate"]) == 0
    head, first = capsys.readouterr().out.splitlines()[:2]
    assert head.split()[-2:] == ["max_steps", "learning_rate"]
    assert (first.split()[0], first.split()[-2:]) == ("runs/c", ["40", "0.1"])
    assert main(["runs", "--sort", "lsos"]) == 2
    assert "Did you mean 'loss'?" in capsys.readouterr().err
