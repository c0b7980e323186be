"""The run directory is one run's, and evaluations are called what files can be called."""

import errno
import fcntl
import os

import pytest

import meshwright as mw
from engine.experiment.runs import EXAMPLES, experiment, losses, measure
from meshwright.errors import UsageError
from meshwright.processes import _internal as processes


def test_two_runs_cannot_share_a_directory_wherever_their_checkpoints_are(tmp_path):
    run, refused = tmp_path / "run", []

    def start_another(step, values):
        if step == 5 and not refused:
            with pytest.raises(
                UsageError, match=f"workdir: {run} is already in use by process {os.getpid()} on "
            ):
                mw.run(experiment(run, save=mw.Save(when=4, directory=str(tmp_path / "two"))))
            refused.append(step)

    mw.run(
        experiment(
            run,
            save=mw.Save(when=4, directory=str(tmp_path / "one")),
            logging=mw.Logging(every=1, trackers=(start_another,)),
        )
    )
    assert refused
    assert [step for step, _ in losses(run)] == list(range(1, 11))
    assert not (tmp_path / "two").exists()


def test_checkpoints_may_be_in_the_run_directory_itself(tmp_path):
    mw.run(experiment(tmp_path, save=mw.Save(when=4, directory=str(tmp_path))))
    assert mw.checkpoints.open_source(tmp_path).step == 10


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_run_on_a_file_system_without_locks_holds_its_directory_and_gives_it_back(
    number, tmp_path, monkeypatch
):
    held = []

    def flock(file, how):
        raise OSError(number, os.strerror(number))

    def look(step, values):
        held.append([processes.is_locked(tmp_path / name) for name in (".run.lock", "checkpoints/.lock")])

    monkeypatch.setattr(fcntl, "flock", flock)
    mw.run(experiment(tmp_path, logging=mw.Logging(every=5, trackers=(look,))))
    assert held[-1] == [True, True]
    assert not list(tmp_path.rglob("*.holder"))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "\x1b[2J", "\0", "\ud800", "x" * 300])
def test_an_evaluation_is_called_what_a_folder_can_be_called(name, tmp_path):
    with pytest.raises(UsageError, match=r"Experiment\.evaluations: .* cannot be a folder's name"):
        experiment(tmp_path, evaluations={name: mw.Evaluation(measure, EXAMPLES)})


@pytest.mark.parametrize("names", [("test", "Test"), ("é", "e\u0301")])
def test_two_evaluations_are_not_called_what_some_disks_take_for_one(names, tmp_path):
    with pytest.raises(UsageError, match=r"Experiment\.evaluations: .* are one name"):
        experiment(tmp_path, evaluations={name: mw.Evaluation(measure, EXAMPLES) for name in names})


def test_evaluations_may_have_names_of_any_language(tmp_path):
    names = ["held_out", "held-out 2", "données", "検証", "..x", "~"]
    mw.run(experiment(tmp_path, evaluations={name: mw.Evaluation(measure, EXAMPLES) for name in names}))


def test_a_score_is_not_called_as_the_time_that_an_evaluation_takes(tmp_path):
    evaluation = mw.Evaluation(lambda params, batch: {"seconds": batch["x"].sum(-1)}, EXAMPLES)
    with pytest.raises(UsageError, match=r"evaluations.test.measure gives a score called 'seconds'"):
        mw.run(experiment(tmp_path, evaluations={"test": evaluation}))
