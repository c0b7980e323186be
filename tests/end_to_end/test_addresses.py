"""A run in an S3 store that is killed without warning, as a person would start it and go on with it."""

import dataclasses
import os
import signal

import numpy as np
import pytest

import meshwright as mw
from end_to_end import mortal
from end_to_end.running import Shell, losses
from meshwright.base._storage._copies import local_copy
from meshwright.errors import UsageError
from meshwright.observe._jsonl import read_jsonl

DEVICES = ("--fake-devices", "8", "input.batch_size=24", "compile.cache=false")


def on_eight_devices(run):
    return dataclasses.replace(mortal.experiment(run), input=mw.Input(mortal.EXAMPLES, batch_size=24))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The losses of the same run in a directory, on as many devices."""
    run = tmp_path_factory.mktemp("undisturbed")
    mw.run(on_eight_devices(str(run)))
    return losses(run)


@pytest.mark.slow
def test_a_run_in_a_store_that_was_killed_goes_on_and_has_every_report_once(
    s3_run, python, tmp_path, undisturbed
):
    shell, run = Shell(python, tmp_path), f"{s3_run}[1]"
    shell.environ["TMPDIR"] = str(tmp_path)  # in which what is killed leaves its files
    shell.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"]  # as the undisturbed run was compiled
    killed = shell("train", "mortal:experiment", f"workdir={run}", "dies_at=5", *DEVICES)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with local_copy(run) as there:  # what was reported before the newest checkpoint, and no more
        assert read_jsonl(there / "metrics.jsonl")[-1]["step"] in (2, 4)
    done = shell("resume", run, "mortal:experiment", "dies_at=0")
    assert done.returncode == 0, done.stderr
    assert "continuing after step" in done.stderr
    with local_copy(run) as there:
        assert losses(there) == undisturbed
        assert {"outcome.json", "experiment.json", "logs"} <= {path.name for path in there.iterdir()}


@pytest.mark.slow
def test_each_of_two_processes_has_a_log_there_and_one_of_them_the_reports(
    s3_run, python, tmp_path, undisturbed
):
    train = (
        "-m",
        "meshwright",
        "train",
        "mortal:experiment",
        f"workdir={s3_run}",
        *DEVICES,
        "--fake-devices",
        "4",
    )
    done = Shell(python, tmp_path)("launch", "local", "-n", "2", "--", *python, *train)
    assert done.returncode == 0, done.stderr
    with local_copy(s3_run) as there:
        found = losses(there)
        logs = [(there / f"logs/process-0000{number}.log").read_text() for number in range(2)]
    np.testing.assert_allclose(list(found.values()), list(undisturbed.values()), rtol=1e-5)
    assert all(log.count("2 processes, 8 × cpu") == 1 for log in logs)


def test_a_bucket_that_is_not_there_is_not_made_but_refused(s3_run):
    run = s3_run.replace("bucket", "bukcet")
    with pytest.raises(UsageError, match=f"^workdir: cannot write {run}/.*bucket does not exist"):
        mw.run(on_eight_devices(run))
