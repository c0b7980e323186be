"""A data file that is put together in memory, an object at a time, is the one that is written to a disk."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base._storage._path import location
from meshwright.checkpoints._format._layout import layouts
from meshwright.checkpoints._format._snapshot import Snapshot
from meshwright.checkpoints._format._write import write_part

STATE = {"a": np.arange(700), "b": np.int8(3), "c": np.arange(9, dtype=np.float32), "none": np.zeros((0, 2))}
ARRAYS = layouts(STATE, num_processes=1)
DATA = "data-00000-of-00001.zarr.zip"
numbers = itertools.count()


def chunks(state, arrays):
    taken = Snapshot(state, arrays, 0)
    taken.take(wait=True)
    return taken


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the directory that holds data file and part file of process 0."""
    directory = tmp_path_factory.mktemp("written")
    write_part(directory, ARRAYS, chunks(STATE, ARRAYS), 0, 1)
    return directory


def uploaded(object_bytes, monkeypatch):
    """Return what is there after an upload in objects of so many bytes: data file, and part file."""
    attempt = location(f"memory://upload/{next(numbers)}/0123abcd")
    with monkeypatch.context() as patched:
        patched.setattr("meshwright.base._storage._object_file.OBJECT_BYTES", object_bytes)
        write_part(attempt, ARRAYS, chunks(STATE, ARRAYS), 0, 1)
    data = sorted(path.name for path in attempt.glob(f"{DATA}*"))
    contents = [(attempt / name).read_bytes() for name in data]
    assert {len(content) for content in contents[:-1]} <= {object_bytes}
    return b"".join(contents), (attempt / "part-00000.json").read_bytes()


@given(st.integers(100, 12_000))
def test_wherever_it_is_cut_it_is_the_same_file(written, object_bytes):
    content, part = uploaded(object_bytes, pytest.MonkeyPatch())
    assert content == (written / DATA).read_bytes()
    assert part == (written / "part-00000.json").read_bytes()


def test_nothing_is_written_to_a_disk(monkeypatch, written):
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr("tempfile.tempdir", None)
    assert uploaded(1 << 28, monkeypatch)[0] == (written / DATA).read_bytes()
