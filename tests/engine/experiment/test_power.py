"""What a run has on disk when a checkpoint counts, and what it says after the power was cut."""

import errno
import json
import logging
import os
from pathlib import Path

import pytest

import meshwright as mw
from disk import no_room_for_more_than
from engine.experiment.runs import experiment
from engine.trainer.runs import deployer, fit, trainer
from meshwright.engine._directory import log_file
from meshwright.engine._errors import explaining_full_disk
from meshwright.errors import MeshwrightError
from meshwright.observe._jsonl import newest_step, read_jsonl


@pytest.fixture
def synced(monkeypatch):
    """Return what is made durable, in order: names, and of metrics the step of the last report."""
    done, fsync = [], os.fsync

    def told(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.name == "metrics.jsonl":
            done.append(("metrics", newest_step(path)))
        elif path.name.startswith("manifest.json"):
            done.append(("manifest", json.loads(path.read_text())["step"]))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", told)
    return done


def check(synced):
    saves = [(number, step) for number, (what, step) in enumerate(synced) if what == "manifest" and step]
    assert saves
    for number, step in saves:
        assert any(what == "metrics" and newest >= step for what, newest in synced[:number]), synced


def test_the_reports_of_a_run_are_on_disk_before_the_checkpoint_that_relies_on_them(synced, tmp_path):
    mw.run(experiment(tmp_path))
    check(synced)
    assert len(synced) == 6  # of three checkpoints; not of each report


def test_the_reports_of_a_trainer_are_on_disk_before_the_checkpoint_that_relies_on_them(synced, tmp_path):
    fit(trainer(tmp_path))
    check(synced)


def without_the_last_lines(run):
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(lines[0])
    return read_jsonl(run / "metrics.jsonl")[-1]["step"]


def test_a_history_that_ends_before_the_checkpoint_is_told(tmp_path, capsys):
    mw.run(experiment(tmp_path))
    newest = without_the_last_lines(tmp_path)
    mw.run(experiment(tmp_path, max_steps=12))
    said = f"metrics.jsonl ends at step {newest}: the reports up to step 10 are lost"
    assert said in capsys.readouterr().err


def test_a_trainer_tells_it_too(tmp_path):
    fit(trainer(tmp_path))
    newest = without_the_last_lines(tmp_path)
    fit(trainer(given=deployer(tmp_path)), epochs=3)
    assert (
        f"metrics.jsonl ends at step {newest}: the reports up to step" in (tmp_path / "log.txt").read_text()
    )


def test_a_whole_history_is_told_of_by_nothing(tmp_path, capsys, caplog):
    mw.run(experiment(tmp_path))
    mw.run(experiment(tmp_path, max_steps=12))
    assert "is lost" not in capsys.readouterr().err + caplog.text


def test_a_disk_that_is_full_is_told_without_a_traceback(tmp_path, caplog):
    def full(step):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    with pytest.raises(MeshwrightError, match=r"a disk is full: .*No space left on device: '/tmp/x'"):
        mw.run(experiment(tmp_path, save=mw.Save(when=full)))


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.EIO, "a disk fails"),
        (errno.EROFS, "a disk fails"),
        (errno.EMFILE, "too many files are open"),
        (errno.ENOENT, "its directory was removed"),
    ],
)
def test_what_the_machine_fails_at_is_told_with_its_cause(tmp_path, number, cause):
    error = OSError(number, os.strerror(number), "/tmp/x")
    message = rf"the run ended because {cause}: .*'/tmp/x'"
    with pytest.raises(MeshwrightError, match=message) as told, explaining_full_disk(tmp_path / "gone"):
        raise error
    assert ("files at a time: try ulimit -n " in str(told.value)) == (number == errno.EMFILE)


def test_a_log_on_a_full_disk_makes_no_noise(tmp_path, capsys):
    with log_file(tmp_path), no_room_for_more_than(1):
        logging.getLogger("meshwright").info("much to tell")
    assert "Logging error" not in capsys.readouterr().err


def test_a_page_that_a_disk_has_no_room_for_is_no_traceback(tmp_path, caplog):
    (tmp_path / "report.html").mkdir()
    mw.run(experiment(tmp_path))
    (record,) = [each for each in caplog.records if "could not be written" in each.message]
    assert not record.exc_info
