"""How much of a file in a store is asked for, and how much is kept."""

import numpy as np
import pytest

from meshwright.base._storage import _object_file
from meshwright.base._storage._object_file import ObjectBytes, parts_of, put_parts
from meshwright.base._storage._path import location

CONTENT = np.random.default_rng(0).bytes(1000)


@pytest.fixture
def put(gcs_run, monkeypatch):
    """Return a function that puts a file of 1000 bytes into the store; they are read in blocks of 10."""
    monkeypatch.setattr(_object_file, "BLOCK_BYTES", 10)

    def put_one(name="file"):
        put_parts(location(gcs_run) / name, len(CONTENT), [CONTENT])
        return ObjectBytes(parts_of(location(gcs_run) / name, len(CONTENT)))

    return put_one


def test_a_part_is_read_and_no_more(put, gcs):
    file, before = put(), gcs.requests
    assert file[495:505].tobytes() == CONTENT[495:505]
    assert gcs.requests - before == 2
    file[499:501]
    assert gcs.requests - before == 2


def test_who_reads_on_finds_the_next_blocks_on_their_way(put):
    file = put()
    file[500:510]
    assert list(file._blocks) == [50]
    file[510:520]
    assert sorted(file._blocks) == list(range(50, 59))
    assert file[0:1000].tobytes() == CONTENT


def test_of_many_files_little_is_kept(put):
    files = [put(f"file-{number}") for number in range(16)]
    for file in files:
        for start in range(0, 1000, 50):
            assert file[start : start + 50].tobytes() == CONTENT[start : start + 50]
    assert max(len(file._blocks) for file in files) <= 4
