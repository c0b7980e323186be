"""Random histories of runs that save: processes die at any point, the power fails, runs overlap."""

import os
from contextlib import ExitStack

import pytest

from meshwright.checkpoints import _directory, _saving
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._directory import complete_steps
from meshwright.checkpoints._format import _commit, _write
from meshwright.errors import MeshwrightError
from simulated.saving import DIRECTORY, play
from soak import cases, play_many


@pytest.mark.soak
def test_no_checkpoint_is_lost_or_half_whatever_dies():
    play_many(play, "saving", cases(few=120, many=100_000))


def do_nothing(*_, **__):
    pass


def make_without_flush(path):
    path.mkdir(parents=True, exist_ok=True)


def lock_nothing(directory):
    directory.mkdir(parents=True, exist_ok=True)
    return ExitStack()


def remove_in_place(path):
    if not (path / "PINNED").is_file():
        _directory.shutil.rmtree(path)


def remove_pinned(path):
    for _ in range(10):  # time to pin it
        list(path.iterdir())
    doomed = path.rename(_directory._fresh_name(path))
    (doomed / "manifest.json").unlink(missing_ok=True)
    _directory.fsync_directory(doomed)
    _directory.shutil.rmtree(doomed)


def remove_all_before():
    for step in complete_steps(DIRECTORY):
        _directory.remove_step(DIRECTORY, step)


def write_without_flush(path, content):
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(content if isinstance(content, bytes) else b"".join(content))
    unfinished.replace(path)
    _commit.fsync_directory(path.parent)


def rename_first(temporary, final, manifest):
    temporary.rename(final)
    _RENAME(final, final, manifest)


def report_first(path, plan, chunks):
    crcs = _WRITE_FILE(path.with_name(f"{path.name}.late"), plan, chunks)
    number = int(path.name.split("-")[1])
    _write._write_report(path.with_name(_write.part_file_name(number)), _write._report(plan, crcs))
    path.with_name(f"{path.name}.late").rename(path)
    return crcs


class WithoutFsync:
    def __getattr__(self, name):
        return do_nothing if name == "fsync" else getattr(os, name)


_RENAME, _WRITE_FILE = _commit._rename, _write._write_file


def give_one_name(path):
    return path.with_name(f"{path.name.partition('.')[0]}.tmp-00000000")


BROKEN = {
    "a new directory is not flushed": (_directory, "make_directory", make_without_flush),
    "data are not flushed": (_write, "os", WithoutFsync()),
    "a manifest is not flushed": (_commit, "write_whole", write_without_flush),
    "a commit is not flushed": (_commit, "fsync_directory", do_nothing),
    "a removal is not flushed": (_directory, "fsync_directory", do_nothing),
    "a commit before its manifest": (_commit, "_rename", rename_first),
    "a part that is reported before it is written": (_write, "_write_file", report_first),
    "a save without a name of its own": (_directory, "_fresh_name", give_one_name),
    "a save under its final name": (_directory, "temporary_path", _directory.step_path),
    "a save that is told before it is committed": (
        _saving.Saving,
        "finish",
        lambda saving: _saving._failure(saving.writing),
    ),
    "a removal in place": (_directory, "_remove_unless_pinned", remove_in_place),
    "a removal of what is pinned meanwhile": (_directory, "_remove_unless_pinned", remove_pinned),
    "a removal before the next commit": (Checkpoints, "before_commit", staticmethod(remove_all_before)),
    "remains that stay": (_directory, "remove_temporaries", do_nothing),
    "a directory without a lock": (_directory, "lock", lock_nothing),
}


FIRST_FOUND = {
    "a new directory is not flushed": (49, 23),
    "a removal is not flushed": (213, 190),
    "a save without a name of its own": (178, 608),
    "a removal in place": (90, 384),
    "a removal of what is pinned meanwhile": (736, 771),
}
"""The first histories that find a rule broken on Python 3.11 and on 3.13, if that takes seconds."""


@pytest.mark.slow
@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.daily(5)
def test_a_broken_rule_is_found(what, monkeypatch):
    monkeypatch.setattr(*BROKEN[what])
    with pytest.raises((AssertionError, OSError, MeshwrightError)):
        play_many(play, what, 4000, FIRST_FOUND.get(what, ()))
