"""Saves by two processes, played here by one that writes their parts one after the other."""

import json
import zipfile
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
import zarr

from meshwright.base import _tree as tree
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._format._commit import commit
from meshwright.checkpoints._format._layout import layouts
from meshwright.checkpoints._format._manifest import Manifest
from meshwright.checkpoints._format._snapshot import Snapshot
from meshwright.checkpoints._format._write import write_part
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import MeshwrightError


class Attempt:
    """One save by two processes, to each of which half of the devices belong."""

    def __init__(self, directory, state, over_processes):
        self.leaves = tree.named_leaves(state)
        shardings = {name: over_processes(leaf.sharding, 2) for name, leaf in self.leaves.items()}
        self.arrays = layouts(
            {
                name: SimpleNamespace(shape=leaf.shape, dtype=leaf.dtype, sharding=shardings[name])
                for name, leaf in self.leaves.items()
            },
            num_processes=2,
        )
        self.temporary, self.final = directory / "step_00000001.tmp-00000000", directory / "step_00000001"
        self.temporary.mkdir()

    def write(self, process, without=None):
        arrays = [array for array in self.arrays if array.name != without]
        chunks = Snapshot(self.leaves, arrays, process)
        chunks.take(wait=False)
        write_part(self.temporary, arrays, chunks, process, 2)

    def commit(self):
        do_not_wait = Event()
        do_not_wait.set()
        commit(self.temporary, self.final, Manifest(1, {}, {}), self.arrays, 2, do_not_wait)


@pytest.fixture
def attempt(tmp_path, state, over_processes):
    return Attempt(tmp_path, state, over_processes)


@pytest.fixture
def committed(attempt):
    attempt.write(1)
    attempt.write(0)
    attempt.commit()
    return attempt.final


def test_what_two_processes_wrote_is_one_state(committed, state, same_bytes):
    assert same_bytes(restore(open_source(committed), state), state)
    assert sorted(path.name for path in committed.iterdir()) == [
        "data-00000-of-00002.zarr.zip",
        "data-00001-of-00002.zarr.zip",
        "manifest.json",
    ]


def test_two_processes_write_each_byte_once_and_share_the_work(committed, state):
    written = [0, 0]
    for array in json.loads((committed / "manifest.json").read_text())["arrays"].values():
        for file, _, size, _ in array["chunks"]:
            written[file] += size
    assert sum(written) == tree.nbytes(state)
    assert abs(written[0] - written[1]) <= 64


def test_two_data_files_unzip_into_one_zarr_hierarchy(committed, state, tmp_path):
    for path in committed.glob("data-*"):
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path / "unzipped")
    group = zarr.open_group(tmp_path / "unzipped", mode="r")
    np.testing.assert_array_equal(group["opt_state/0"][...], state["opt_state"][0])
    np.testing.assert_array_equal(group["opt_state/1"][...], state["opt_state"][1])


def test_without_all_parts_there_is_no_checkpoint(attempt):
    attempt.write(0)
    with pytest.raises(MeshwrightError, match=r"processes \[1\] did not finish"):
        attempt.commit()
    assert not attempt.final.exists()


def test_a_process_that_fails_says_so_and_there_is_no_checkpoint(attempt):
    (attempt.temporary / "data-00001-of-00002.zarr.zip").mkdir()  # in its way
    attempt.write(0)
    with pytest.raises(FileExistsError):
        attempt.write(1)
    with pytest.raises(MeshwrightError, match="process 1: FileExistsError"):
        attempt.commit()
    assert not attempt.final.exists()


def test_processes_that_save_different_states_are_found_out(attempt):
    attempt.write(0)
    attempt.write(1, without="opt_state/0")
    with pytest.raises(MeshwrightError, match=r"process 1 saved another state than process 0.*opt_state/0"):
        attempt.commit()
    assert not attempt.final.exists()


def test_of_two_attempts_at_one_step_the_first_to_commit_wins(
    attempt, committed, tmp_path, make_state, over_processes
):
    (tmp_path / "again").mkdir()
    second = Attempt(tmp_path / "again", make_state(seed=1), over_processes)
    second.write(0)
    second.write(1)
    second.final = committed
    before = (committed / "manifest.json").read_bytes()
    with pytest.raises(OSError, match="not empty"):
        second.commit()
    assert (committed / "manifest.json").read_bytes() == before
