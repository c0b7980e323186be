"""Exports that are killed, meet each other, or find the disk full: nothing half-made is ever there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from disk import no_room_for_more_than
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._source import as_source
from meshwright.checkpoints._convert import convert
from meshwright.checkpoints._formats._export_npz import export_npz
from meshwright.checkpoints._formats._export_safetensors import export_safetensors
from meshwright.checkpoints._formats._export_seqax import export_seqax
from meshwright.checkpoints._formats._export_t5x import export_t5x
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import MeshwrightError, UsageError

W = np.random.default_rng(0).random(1 << 20, np.float32)
EXPORTS = {
    "native": convert,
    "npz": lambda source, place: export_npz(source, place / "x"),
    "safetensors": lambda source, place: export_safetensors(source, place, max_shard_bytes=100),
    "seqax": lambda source, place: export_seqax(source, place, step=0),
    "t5x": lambda source, place: export_t5x(source, place, step=0),
}
DIES = """
import os, signal, sys
from pathlib import Path
from checkpoints.test_staging import EXPORTS, source_that
EXPORTS[sys.argv[1]](source_that(lambda: os.kill(os.getpid(), signal.SIGKILL)), Path(sys.argv[2]))
"""

every_format = pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)


class source_that:  # noqa: N801 - it reads as a sentence: a source that acts
    """A checkpoint of two arrays. When half of it has been written, `act` is called."""

    format, step, extra, path = "a test", 0, None, Path("nowhere")

    def __init__(self, act=lambda: None):
        def read(index):
            act()
            return W[index]

        lazy = LazyArray(W.shape, W.dtype, read)
        self.held = as_source({"target/a": W + 1, "target/b": lazy}, "x").arrays()

    def arrays(self):
        return self.held

    def read(self, name, index, /):
        return self.held[name].read(index)


def is_whole(place):
    arrays = open_source(next(place.glob("*.npz"), place)).arrays()
    found = {name.replace(".", "/"): np.asarray(array) for name, array in arrays.items()}
    return np.array_equal(found["target/a"], W + 1) and np.array_equal(found["target/b"], W)


def entries(place):
    return sorted(path.name for path in place.iterdir() if path.name != ".lock")


@pytest.mark.parametrize("name", EXPORTS)
def test_what_a_killed_export_left_is_no_checkpoint_and_the_next_one_takes_its_place(name, python, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [*python, "-c", DIES, name, str(killed)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    with pytest.raises(MeshwrightError, match="only the unfinished"):
        open_source(next(killed.glob("*.npz"), killed))
    for place in (killed, whole):
        EXPORTS[name](source_that(), place)
        assert is_whole(place)
    assert entries(killed) == entries(whole)


@every_format
def test_of_two_exports_to_one_place_the_later_is_refused(export, tmp_path):
    refused = []

    def try_the_same():
        with pytest.raises(UsageError, match=r"in use by process \d+") as told:
            export(source_that(), tmp_path)
        refused.append(told)

    export(source_that(try_the_same), tmp_path)
    assert refused
    assert is_whole(tmp_path)


@every_format
def test_a_disk_that_takes_no_more_leaves_nothing(export, tmp_path):
    place = tmp_path / "out"
    with no_room_for_more_than(1 << 20), pytest.raises(MeshwrightError, match=r"out.*File too large"):
        export(source_that(), place)
    assert entries(place) == []


@every_format
def test_a_place_that_is_a_file_is_refused_by_name(export, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file.* cannot be used: (File exists|Not a directory)"):
        export(source_that(), tmp_path / "file")


def test_shards_without_their_index_are_not_taken_for_a_checkpoint(tmp_path):
    export_safetensors(source_that(), tmp_path, max_shard_bytes=100)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(MeshwrightError, match="1 of 2"):
        open_source(tmp_path)
