"""The byte budget of a save's host copies, and the files that come of it."""

import errno
import itertools
import os
import threading
import zlib
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from crash.faults import before_line, refused
from meshwright.base._checksums import crc32, joined
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._format._layout import layouts
from meshwright.checkpoints._format._snapshot import Snapshot
from meshwright.checkpoints._format._write import write_part
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import MeshwrightError

NBYTES = 800


def host_arrays(num_arrays):
    return {f"x{number}": np.full(100, float(number)) for number in range(num_arrays)}


def snapshot(leaves, host_nbytes):
    return Snapshot(leaves, layouts(leaves, 1), 0, host_nbytes)


def test_no_more_is_copied_than_the_budget_allows():
    chunks = snapshot(host_arrays(5), 2 * NBYTES)
    assert not chunks.take(wait=False)
    chunks.release(0)
    assert not chunks.take(wait=False)
    chunks.release(1)
    chunks.release(2)
    assert chunks.take(wait=False)


def test_a_chunk_larger_than_the_budget_passes_alone():
    chunks = snapshot(host_arrays(2), NBYTES // 2)
    assert not chunks.take(wait=False)
    assert np.frombuffer(chunks.get(0)[0])[0] == 0
    chunks.release(0)
    assert chunks.take(wait=False)


def test_taking_waits_for_room_and_the_writer_for_chunks():
    chunks, seen = snapshot(host_arrays(20), NBYTES), []

    def write():
        for number in range(20):
            seen.append(np.frombuffer(chunks.get(number)[0])[0])
            chunks.release(number)

    writer = threading.Thread(target=write)
    writer.start()
    assert chunks.take(wait=True)
    writer.join()
    assert seen == list(range(20))


def test_nobody_waits_for_a_save_that_was_given_up():
    chunks = snapshot(host_arrays(3), NBYTES)
    chunks.take(wait=False)
    chunks.abandon()
    chunks.take(wait=True)
    with pytest.raises(MeshwrightError, match="given up"):
        chunks.get(2)


def test_nobody_waits_for_room_that_was_made_a_moment_ago(monkeypatch):
    class Impatient(threading.Condition):
        def wait(self, timeout=None):
            raise TimeoutError

    monkeypatch.setattr("meshwright.checkpoints._format._snapshot.Condition", Impatient)
    for number in itertools.count():
        chunks = snapshot(host_arrays(2), NBYTES)
        chunks.take(wait=False)
        try:
            with before_line(number, partial(chunks.release, 0)):
                chunks.take(wait=True)
        except TimeoutError:
            break
    assert not chunks.take(wait=False)  # there really was no room: nothing was released before so late a line
    assert number > 10


@pytest.fixture
def waiting(monkeypatch):
    """Return an event: a thread begins to wait for chunks or room, and holds the lock until it does."""
    begun = threading.Event()

    class Telling(threading.Condition):
        def wait(self, timeout=None):
            begun.set()
            return super().wait(timeout)

    monkeypatch.setattr("meshwright.checkpoints._format._snapshot.Condition", Telling)
    return begun


def test_a_writer_that_waits_for_a_chunk_that_costs_nothing_is_woken(state, waiting):
    chunks = snapshot({"w": state["params"]["w"]}, 0)
    writer = threading.Thread(target=chunks.get, args=[0], daemon=True)
    writer.start()
    waiting.wait()
    chunks.take(wait=False)
    writer.join(60)
    assert not writer.is_alive()


def test_views_of_arrays_on_cpu_cost_nothing(state):
    leaves = {"w": state["params"]["w"]}
    assert snapshot(leaves, 0).take(wait=False)


def test_a_state_far_larger_than_the_budget_is_saved(tmp_path, same_bytes):
    state = {f"x{number}": np.random.default_rng(number).standard_normal(1 << 18) for number in range(20)}
    with Checkpoints(tmp_path, host_nbytes=3 << 20) as checkpoints:
        checkpoints.save(1, state)
    assert same_bytes(restore(open_source(tmp_path), state), state)


@pytest.mark.parametrize("direct", [True, False])
def test_chunks_that_span_windows_come_back_bit_for_bit(mesh, tmp_path, monkeypatch, same_bytes, direct):
    if not direct:
        monkeypatch.setattr(os, "O_DIRECT", -1)  # cannot be opened so, as on tmpfs
    random, sharding = np.random.default_rng(0), NamedSharding(mesh, P("fsdp"))
    state = {  # 50 MB: chunks that end in the window they begin in, and that span two or three
        "long": jax.device_put(random.standard_normal((10, 1000_003), np.float32), sharding),
        **{f"x{number}": random.standard_normal(4000) for number in range(300)},
        "last": random.standard_normal(7),
    }
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
    assert same_bytes(restore(open_source(tmp_path), state), state)


def test_of_several_threads_that_fail_the_first_says_why(tmp_path, monkeypatch, waiting):
    def full(file, data, offset, pwrite=os.pwrite):
        if offset >= 32 << 20:  # the third window, while another thread waits for chunks of the fourth
            waiting.wait()
            raise refused(errno.ENOSPC)
        return pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    leaves = {f"x{number}": np.zeros(1 << 20) for number in range(8)}
    arrays, chunks = layouts(leaves, 1), snapshot(leaves, 50 << 20)
    chunks.take(wait=False)
    with pytest.raises(OSError, match="No space left"):
        write_part(tmp_path, arrays, chunks, 0, 1)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_the_checksum_of_two_pieces_is_that_of_both_together(data, at):
    first, second = data[:at], data[at:]
    assert joined(crc32(first), crc32(second), len(second)) == zlib.crc32(data)
