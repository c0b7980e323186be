import json
import math
import tracemalloc

import pytest

import meshwright as mw
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.errors import InputError
from meshwright.report._run import read_run
from report.runs import write_run


def test_a_finished_run_is_read_whole(finished):
    run = read_run(finished)
    assert (run.ending.state, run.step, run.max_steps) == ("finished", 10, 10)
    assert (run.missing, run.damage) == ([], [])
    assert (run.evaluations, list(run.scores)) == (["all"], ["all/loss"])
    assert list(run.series["loss"].steps) == list(range(1, 11))
    assert run.best["all/loss"].value == min(run.series["all/loss"].values)
    assert run.sizes["num_params"] == 8
    assert run.outputs["all"][-1] == "step_00000010.jsonl"


def test_the_processes_of_a_run_are_told_apart(finished):
    steps = [(attempt.first_step, attempt.last_step) for attempt in read_run(finished).attempts]
    assert steps == [(0, 6), (6, 10)]


def test_a_folder_of_something_else_is_no_run(tmp_path):
    with pytest.raises(InputError, match="is not a run: it has neither"):
        read_run(tmp_path)


def test_files_that_are_missing_are_named_and_the_others_read(tmp_path):
    write_run(tmp_path)
    for name in ("environment.json", "state.txt"):
        (tmp_path / name).unlink()
    run = read_run(tmp_path)
    assert run.missing == ["environment.json", "state.txt"]
    assert run.series["loss"].last == 1.25


def test_metrics_alone_are_a_run_of_which_the_end_is_unknown(tmp_path):
    mw.observe.jsonl(tmp_path / "metrics.jsonl")(5, {"loss": 0.5})
    run = read_run(tmp_path)
    assert (run.ending.state, run.step, run.series["loss"].last) == ("unknown", 5, 0.5)


def test_lines_that_are_no_reports_are_named_and_the_others_read(tmp_path):
    metrics = write_run(tmp_path) / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b"\xff\xfe{\n" + b'{"step": 50, "time": 1, "loss": 1.0}\n')
    run = read_run(tmp_path)
    assert len(run.damage) == 1
    assert "metrics.jsonl, line 6: expected a report" in run.damage[0]
    assert run.series["loss"].last == 1.0


@pytest.mark.parametrize("name", ["environment.json", "outcome.json"])
@pytest.mark.parametrize("text", ["{", "[1]", "\x00"])
def test_a_damaged_file_is_named(tmp_path, name, text):
    (write_run(tmp_path) / name).write_text(text)
    assert f"{name} cannot be read" in read_run(tmp_path).damage[0]


def test_numbers_that_are_not_finite_survive(tmp_path):
    run = read_run(write_run(tmp_path, (1.0, math.nan, math.inf, -math.inf)))
    assert [str(value) for value in run.series["loss"].values] == ["1.0", "nan", "inf", "-inf"]


def test_what_is_better_is_what_checkpoints_are_kept_by_else_what_names_say(tmp_path):
    scores = {20: {"test/wrong": 3, "test/accuracy": 0.5, "test/seconds": 1, "test/odd": 1}}
    scores[40] = {"test/wrong": 2, "test/accuracy": 0.4, "test/seconds": 1, "test/odd": 2}
    run = read_run(write_run(tmp_path, scores=scores))
    assert {name: best.step for name, best in run.best.items()} == {"test/accuracy": 20, "test/wrong": 40}
    assert run.main_score == "test/wrong"


def test_a_run_goes_on_while_its_checkpoints_are_held(tmp_path):
    write_run(tmp_path)
    with Checkpoints(tmp_path / "checkpoints"):
        assert read_run(tmp_path).ending.state == "running"
    assert read_run(tmp_path).ending.state == "killed"


def test_a_run_in_an_object_store_goes_on_while_it_reports(tmp_path):
    write_run(tmp_path)
    (tmp_path / "environment.json").write_text(json.dumps({"checkpoints": "s3://bucket/run"}))
    assert read_run(tmp_path).ending.state == "running"
    (tmp_path / "metrics.jsonl").write_text('{"step": 10, "time": 5.0, "loss": 1.0}\n')
    assert read_run(tmp_path).ending.state == "killed"


def test_warnings_and_errors_of_all_logs_are_found_with_what_follows_them(tmp_path):
    logs = write_run(tmp_path) / "logs"
    (logs / "process-00000.log").write_text(
        "2026-11-21T03:57:33 INFO begun\n2026-11-21T03:57:35 ERROR it broke\nTraceback …\n  line 1\n"
    )
    (logs / "process-00001.log").write_text("2026-11-21T03:57:34 WARNING slow\n")
    slow, broke = read_run(tmp_path).incidents
    assert (slow.process, slow.level, slow.message, slow.details) == ("process-00001", "WARNING", "slow", "")
    assert (broke.message, broke.details) == ("it broke", "Traceback …\n  line 1")


def test_a_long_run_is_held_as_a_few_bytes_a_number(tmp_path):
    numbers = {f"loss_{i}": 1 / 3 for i in range(10)}
    lines = [json.dumps({"step": step, "time": 1.0 + step, **numbers}) for step in range(2000)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    tracemalloc.start()
    try:
        run = read_run(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (run.step, len(run.series["loss_9"].steps)) == (1999, 2000)
    assert peak < 2000 * 10 * 32  # of which 16 are a step and a value


def test_steps_that_are_told_of_again_out_of_order_have_their_newest_values(tmp_path):
    told = [(1, 5.0), (3, 4.0), (2, 3.0), (3, 2.0)]
    lines = [json.dumps({"step": step, "time": 1.0, "loss": loss}) for step, loss in told]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    loss = read_run(tmp_path).series["loss"]
    assert list(zip(loss.steps, loss.values, strict=True)) == [(1, 5.0), (2, 3.0), (3, 2.0)]
