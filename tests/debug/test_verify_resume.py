"""A program is proved to be continued to the bit, or the cause of the difference is named."""

from pathlib import Path

import pytest
from benchmarks.planted import resumes

import meshwright as mw
from meshwright.debug._findings import Notes, causes
from meshwright.errors import UsageError

ONE, OTHER = {"x": "1"}, {"x": "2"}


def notes(program="p", first=ONE, batches=(ONE,) * 4, repeated=None, **saved):
    usual = {"cast": False, "names": False, "data_position": True}
    lines = [["model.py:1 in loss", f"mul {program}"]]
    numbered = dict(enumerate(batches, 1))
    return Notes({**usual, **saved}, [{"digest": program, "lines": lines}], first, numbered, repeated)


def kinds(*runs):
    return [cause.kind for cause in causes(*runs, 2)]


DIFFERENT = {"different": ["state/params/w"], "calls": []}


@pytest.mark.parametrize(
    ("cause", "a", "again", "killed"),
    [
        ("unseeded data", notes(), notes(batches=(OTHER,) * 4), notes(batches=(OTHER,) * 4)),
        ("position of the data", notes(), notes(), notes(batches=(ONE, ONE, OTHER, ONE))),
        ("position of the data", notes(data_position=False), notes(), notes()),
        ("random call at trace time", notes(), notes(program="q"), notes()),
        ("random call at trace time", notes(), notes(first=OTHER), notes()),
        ("nondeterministic kernels", notes(), notes(repeated=DIFFERENT), notes()),
        ("state outside", notes(), notes(repeated={**DIFFERENT, "calls": ["model.py:2 in loss"]}), notes()),
        ("saved form", notes(cast=True), notes(), notes()),
        ("unknown", notes(), notes(), notes()),
    ],
)
def test_each_experiment_tells_one_cause(cause, a, again, killed):
    assert kinds(a, again, killed) == [cause]


def test_two_causes_are_both_named():
    again = notes(program="q", batches=(OTHER,) * 4)
    assert kinds(notes(), again, again) == ["random call at trace time", "unseeded data"]


def test_too_few_steps_are_refused():
    with pytest.raises(UsageError, match="at least 4"):
        mw.debug._internal.verify_resume("module:function", steps=3)


@pytest.fixture
def planted(tmp_path, monkeypatch):
    (tmp_path / "resumes.py").write_text(Path(resumes.__file__).read_text())
    monkeypatch.chdir(tmp_path)
    return lambda fault: mw.debug._internal.verify_resume(
        "resumes:experiment", {"fault": fault, "workdir": "mine"}, fake_devices=1
    )


@pytest.mark.slow
def test_a_program_without_a_fault_is_continued_to_the_bit_and_its_workdir_is_not_touched(planted, tmp_path):
    found = planted("none")
    assert found.is_equal, str(found)
    assert found.continued_after < found.killed_after
    assert not (tmp_path / "mine").exists()


FAULTS = [
    pytest.param(fault, marks=pytest.mark.slow if fault == "traced" else pytest.mark.nightly)
    for fault in resumes.EXPECTED
    if fault != "none"
]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_cause_of_a_planted_difference_is_named(planted, fault):
    found = planted(fault)
    assert [cause.kind for cause in found.causes] == [resumes.EXPECTED[fault]], str(found)
    if fault in ("traced", "counter"):
        assert "resumes.py" in found.causes[0].line
