import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError, UsageError
from meshwright.observe._jsonl import jsonl, newest_step, read_jsonl, salvage_jsonl

names = st.text(min_size=1, max_size=8).filter(lambda name: name not in ("step", "time"))
histories = st.lists(st.dictionaries(names, st.floats(), max_size=3), max_size=5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.jsonl"


def write_steps(path, *steps):
    write = jsonl(path)
    for step in steps:
        write(step, {"loss": 1 / step})


def steps_in(path):
    return [report["step"] for report in read_jsonl(path)]


def test_a_line_is_strict_json_with_the_step_and_the_time(path):
    before = time.time() - 0.001
    jsonl(path)(50, {"loss": math.nan, "norm": -math.inf, "größe": 1.5})
    line = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert before <= line.pop("time") <= time.time() + 0.001
    assert line == {"step": 50, "loss": "nan", "norm": "-inf", "größe": 1.5}


@given(history=histories, lost=st.integers(0, 500))
def test_a_kill_at_any_byte_loses_only_the_line_being_written(tmp_path_factory, history, lost):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    write = jsonl(path)
    for step, values in enumerate(history):
        write(step, values)
    written = path.read_bytes() if history else b""
    left = written[: max(0, len(written) - lost)]
    path.write_bytes(left)

    finished = left.count(b"\n")
    jsonl(path)(99, {"again": 1.0})
    *kept, last = [{k: v for k, v in report.items() if k != "time"} for report in read_jsonl(path)]
    assert str(kept) == str([{"step": step} | history[step] for step in range(finished)])
    assert last == {"step": 99, "again": 1.0}


def test_a_reader_leaves_out_the_line_being_written(path):
    write_steps(path, 1, 2)
    with path.open("ab") as file:
        file.write(b'{"step": 3, "lo')
    assert steps_in(path) == [1, 2]


def test_a_report_can_be_read_as_soon_as_it_is_written(path):
    write = jsonl(path)
    for step in (1, 2, 3):
        write(step, {"loss": 0.5})
        assert steps_in(path)[-1] == step


def test_a_resumed_run_forgets_what_came_after_its_checkpoint(path):
    write_steps(path, 50, 100, 150, 200)
    jsonl(path, resume_step=100)(150, {"loss": 7.0})
    assert steps_in(path) == [50, 100, 150]
    assert read_jsonl(path)[-1]["loss"] == 7.0


def test_a_run_that_starts_anew_forgets_everything(path):
    write_steps(path, 50, 100)
    jsonl(path, resume_step=0)
    assert read_jsonl(path) == []


def test_kept_lines_stay_as_they_are_to_the_byte(path):
    path.parent.mkdir()
    path.write_bytes(b'{"loss":1.50,"step":50}\n{"step":100}\n')
    jsonl(path, resume_step=50)
    assert path.read_bytes() == b'{"loss":1.50,"step":50}\n'


def test_later_lines_go_all_at_once(path):
    write_steps(path, 1, 2, 3)
    with path.open("rb") as reader:
        jsonl(path, resume_step=1)
        assert reader.read().count(b"\n") == 3
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("line", ["loss: 3", "[1, 2]", '{"loss": 1.0}', '{"step": 2, "note": "hello"}', ""])
def test_a_line_that_is_no_report_is_named(path, line):
    write_steps(path, 1)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2: expected a report"):
        jsonl(path)


@pytest.mark.parametrize("name", ["step", "time"])
def test_a_value_cannot_take_a_name_of_the_report_itself(path, name):
    with pytest.raises(UsageError, match=f"may not be called '{name}'"):
        jsonl(path)(1, {name: 1.0})


def test_the_lines_around_damage_can_be_salvaged(path):
    write_steps(path, 1, 2)
    path.write_bytes(
        b"{}\n" + path.read_bytes() + b'\xff\n{"step": 3, "loss": 1}\n{"step": 1e999}\n{"step": 4'
    )
    damage = []
    assert [report["step"] for report in salvage_jsonl(path, damage.append)] == [1, 2, 3]
    assert [line.partition(": ")[0] for line in damage] == [f"{path}, line {i}" for i in (1, 4, 6)]


def test_of_a_file_without_damage_all_is_salvaged(path):
    write_steps(path, 1, 2)
    damage = []
    assert list(salvage_jsonl(path, damage.append)) == read_jsonl(path)
    assert not damage


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 1e400}',
        b'{"step": 1, "loss": 1e400}',
        b"[" * 200_000,
        b'{"step": -1}',
        b"7",
        b"\xff",
        b'{"step": 1.5}',
        b'{"step": 1, "loss": 1' + b"0" * 400 + b"}",
    ],
    ids=lambda line: repr(line[:24]),
)
def test_a_line_that_no_program_wrote_is_damage_and_hides_no_other(path, line):
    write_steps(path, 1)
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(InputError, match="line 1: expected a report"):
        read_jsonl(path)
    damage = []
    reports = list(salvage_jsonl(path, damage.append))
    assert ([report["step"] for report in reports], len(damage)) == ([1], 1)


def test_the_newest_step_is_that_of_the_last_whole_line(path):
    assert newest_step(path) is None
    write_steps(path, 3, 5)
    assert newest_step(path) == 5
