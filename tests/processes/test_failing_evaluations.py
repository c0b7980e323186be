"""Two processes whose evaluation raises an error: on both, or on one alone."""

from pathlib import Path

import meshwright as mw
from meshwright.launch._internal import launch_local

PROGRAM = str(Path(__file__).with_name("evaluating.py"))


def run(python, workdir, *failing):
    return launch_local([*python, PROGRAM, str(workdir), *failing], 2, grace_seconds=20)


def saved(workdir):
    return [path.name for path in sorted((workdir / "checkpoints").glob("step_????????"))]


def test_an_evaluation_that_raises_on_all_processes_leaves_its_step_saved_and_is_owed(
    python, tmp_path, capfd
):
    assert run(python, tmp_path, "0", "1") == 1
    assert (
        "The state of step 3 is saved. The next start makes the evaluation first." in capfd.readouterr().err
    )
    assert saved(tmp_path)[-1] == "step_00000003"
    assert run(python, tmp_path) == 0
    scores = mw.Checkpoints(tmp_path / "checkpoints").scores_by_step()
    assert {step for step, values in scores.items() if "rows/error" in values} == {3, 4}


def test_an_example_that_one_process_alone_cannot_read_ends_all_with_its_error_and_the_step_saved(
    python, tmp_path, capfd
):
    assert run(python, tmp_path, "1") == 1
    report = capfd.readouterr().err
    assert "ZeroDivisionError: example" in report
    assert "The state of step 3 is saved. The next start makes the evaluation first." in report
    assert saved(tmp_path)[-1] == "step_00000003"
