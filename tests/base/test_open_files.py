"""How many files a process may open, and what is said where that is too few."""

import resource

import pytest

from meshwright.base._files import allow_files_of
from meshwright.cli import main
from meshwright.errors import UsageError
from meshwright.processes import _start
from meshwright.processes._cluster import Cluster


@pytest.fixture
def limited(monkeypatch):
    """A system that allows 60 files, of which 30 are asked for; the limits are returned."""
    limits = [30, 60]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, asked: limits.__setitem__(slice(2), asked))
    return limits


def test_as_many_files_are_asked_for_as_a_run_opens(limited):
    allow_files_of(2)
    assert limited == [52, 60]
    allow_files_of(10)
    assert limited == [60, 60]


def test_where_the_system_sets_no_end_as_many_are_asked_for(limited):
    limited[1] = resource.RLIM_INFINITY
    allow_files_of(400)
    assert limited == [2440, resource.RLIM_INFINITY]


def test_process_0_of_any_launcher_refuses_more_processes_than_it_has_files_for(limited):
    with pytest.raises(UsageError, match="process 0 of 100 opens some 320 files, and may open 60: ulimit"):
        _start._join(Cluster("a test", ""), "127.0.0.1:1", 100, 0, 1, 1)


def test_a_command_says_how_many_files_it_may_open(tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise OSError(24, "Too many open files", "a.txt")

    monkeypatch.setattr("meshwright.cli._answer", fail)
    assert main(["runs", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "error: a.txt: Too many open files. This process may open " in said
    assert "files at a time: try ulimit -n " in said
