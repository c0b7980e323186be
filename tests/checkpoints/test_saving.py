"""Saves of which a thread writes a part while `save` still waits for room to take the rest."""

import numpy as np
import pytest

from checkpoints.test_checkpoints import no_room_for_more_than
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._saving import Session
from meshwright.errors import MeshwrightError, PeersError

pytestmark = pytest.mark.timeout(300, method="thread")  # who waits for ever cannot be woken by an error

STATE = {f"x{number}": np.zeros(1 << 17) for number in range(4)}  # 1 MiB each


def test_a_disk_that_is_full_while_save_waits_for_room_is_told_at_the_next_call(tmp_path):
    with Checkpoints(tmp_path, host_nbytes=1 << 20) as checkpoints:
        with no_room_for_more_than(1 << 10):
            checkpoints.save(1, STATE)
            with pytest.raises(MeshwrightError, match=r"the save of step 1 failed:.*\n.*OSError.*too large"):
                checkpoints.save(2, STATE)
        checkpoints.save(2, STATE)
    assert checkpoints.latest() == 2


def test_an_upload_that_fails_at_once_while_save_waits_for_room_is_told_at_the_next_call(monkeypatch):
    def refuse(*_):
        raise ConnectionError("refused")

    with Checkpoints("memory://tests/upload", host_nbytes=1 << 20) as checkpoints:
        monkeypatch.setattr("meshwright.checkpoints._format._write.put_parts", refuse)
        checkpoints.save(1, STATE)
        with pytest.raises(MeshwrightError, match=r"the save of step 1 failed:.*\n.*refused"):
            checkpoints.wait()
        monkeypatch.undo()
        checkpoints.save(1, STATE)
    assert checkpoints.latest() == 1


def test_what_must_never_be_behind_is_done_before_a_checkpoint_counts(tmp_path):
    seen = []
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.before_commit = lambda: seen.append(checkpoints.latest())
        for step in (1, 2):
            checkpoints.save(step, STATE)
    assert seen == [None, 1]


def test_a_process_that_loses_another_one_at_the_end_ends_its_own_part_and_leaves(tmp_path):
    class Saving:
        step, joined = 1, False

        def finish(self):
            raise PeersError("process 1 is gone")

        def join(self):
            self.joined = True

    session = Session(tmp_path)
    session.open()
    session.saving = saving = Saving()
    with pytest.raises(PeersError):
        session.leave(None, lambda: None)
    assert saving.joined
    assert not session.is_open
