import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import jax
import numpy as np
import pytest

from disk import no_room_for_more_than
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._directory import is_locked
from meshwright.checkpoints._formats._inspect import verify
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import keep_any, last
from meshwright.errors import CheckpointError, MeshwrightError, UsageError
from meshwright.processes._when import Tick, every


class Counting:
    """Data that counts; its state is where it stands."""

    state_is_global = True

    def __init__(self):
        self.position = 0

    def __next__(self):
        self.position += 1
        return self.position

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_state_may_be_donated_as_soon_as_save_returns(make_state, tmp_path, same_bytes):
    step = jax.jit(lambda state: jax.tree.map(lambda x: x * 0 - 1, state), donate_argnums=0)
    donated, kept = make_state(seed=5), make_state(seed=5)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, donated)
        for _ in range(5):
            donated = step(donated)
        jax.block_until_ready(donated)
    assert same_bytes(restore(open_source(tmp_path), kept), kept)


def test_a_host_array_may_be_changed_as_soon_as_save_returns(tmp_path):
    state = {"x": np.zeros(1 << 20)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        state["x"][:] = 1
    assert not restore(open_source(tmp_path), state)["x"].any()


def test_extra_may_be_changed_as_soon_as_save_returns(tmp_path):
    extra = {"data": {"position": 1}}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": np.zeros(1 << 20)}, extra)
        extra["data"]["position"] = 2
    assert open_source(tmp_path).extra == {"data": {"position": 1}}


def test_the_same_state_of_a_step_is_not_written_again(make_state, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(seed=1), {"scores": {"loss": 1.0}, "note": [1, (2,)]})
        checkpoints.wait()
        before = (tmp_path / "step_00000001" / "manifest.json").stat().st_mtime_ns
        checkpoints.save(1, make_state(seed=1), {"scores": {"loss": 1.0}, "note": [1, [2]]})
    assert (tmp_path / "step_00000001" / "manifest.json").stat().st_mtime_ns == before


def test_the_same_state_of_a_step_gets_the_scores_of_later_evaluations(make_state, tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        for scores in ({"a": 1.0}, {"b": 2.0}, {}):
            checkpoints.save(1, make_state(seed=1), {"scores": scores, "note": 1})
            checkpoints.wait()
            assert checkpoints.scores() == ({"a": 1.0} if "a" in scores else {"a": 1.0, "b": 2.0})
    assert (verify(tmp_path).damage, open_source(tmp_path).extra["note"]) == ((), 1)


def test_the_same_state_that_is_split_otherwise_is_not_written_again(make_state, tmp_path):
    state = make_state(seed=1)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.save(1, jax.device_put(state, jax.devices()[0]))


@pytest.mark.parametrize(
    ("another", "said"),
    [
        ({"a": np.zeros(3), "k": jax.random.key(0)}, "a"),
        ({"a": np.ones(3, np.float32), "k": jax.random.key(0)}, "a"),
        ({"a": np.ones(3), "b": np.ones(3), "k": jax.random.key(0)}, "b"),
        ({"k": jax.random.key(0)}, "a"),
        ({"a": np.ones(3), "k": jax.random.key(1)}, "k"),
        ({"a": np.ones(3), "k": jax.random.key_data(jax.random.key(0))}, "the kind of its random keys"),
    ],
)
def test_another_state_of_a_step_that_exists_is_refused(tmp_path, another, said):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, {"a": np.ones(3), "k": jax.random.key(0)})
        with pytest.raises(UsageError, match=f"step 5 is saved already, with other values of {said}: "):
            checkpoints.save(5, another)
    assert np.asarray(open_source(tmp_path).arrays()["a"]).all()


def test_other_values_of_extra_for_a_step_that_exists_are_told_and_not_saved(tmp_path, caplog):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, {"a": np.ones(3)}, {"note": "first"})
        checkpoints.save(5, {"a": np.ones(3)}, {"note": "second"})
    assert "has the same state, and keeps its values of extra: note differ." in caplog.text
    assert open_source(tmp_path).extra == {"note": "first"}


def test_a_training_that_begins_anew_beside_later_checkpoints_is_refused_at_its_first_step(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.saver(every(10))(Tick(10), {"x": 10}, None, None)
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UsageError, match="has a checkpoint of step 10, and this training is at step 1"):
            checkpoints.saver(every(10))(Tick(1), {"x": 1}, None, None)
        checkpoints.resume({"x": 0}, None, otherwise=pytest.fail)
        checkpoints.saver(every(10))(Tick(10, last=True), {"x": 10}, None, None)


def test_a_full_disk_is_told_at_the_next_call_and_leaves_no_trace(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": np.zeros(10)})
        checkpoints.wait()
        with no_room_for_more_than(1 << 20):
            checkpoints.save(2, {"x": np.zeros(1 << 20)})
            with pytest.raises(
                MeshwrightError, match=r"the save of step 2 failed:\n  process 0: OSError.*too large"
            ):
                checkpoints.wait()
        assert checkpoints.latest() == 1
        assert [path.name for path in tmp_path.glob("step_*")] == ["step_00000001"]


def test_after_a_failed_save_the_same_step_can_be_saved(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        with no_room_for_more_than(10):  # not even for word of the failure
            checkpoints.save(2, {"x": np.zeros(100)})
            with pytest.raises(MeshwrightError):
                checkpoints.save(3, {"x": np.zeros(100)})
        checkpoints.save(2, {"x": np.zeros(100)})
    assert checkpoints.latest() == 2


def save_and_fail(directory, state):
    with Checkpoints(directory) as checkpoints:
        checkpoints.save(1, state)
        raise ZeroDivisionError


def test_leaving_after_an_error_finishes_the_save_and_keeps_the_error(tmp_path):
    with pytest.raises(ZeroDivisionError):
        save_and_fail(tmp_path, {"x": np.zeros(10)})
    assert Checkpoints(tmp_path).latest() == 1


def test_leaving_after_an_error_mentions_a_save_that_failed_too(tmp_path):
    with no_room_for_more_than(1000), pytest.raises(ZeroDivisionError) as error:
        save_and_fail(tmp_path, {"x": np.zeros(1000)})
    assert "The save of step 1 failed, too: OSError" in error.value.__notes__[0]


def test_the_latest_step_is_the_highest_number(tmp_path):
    assert Checkpoints(tmp_path).latest() is None
    with Checkpoints(tmp_path, keep=last(10)) as checkpoints:
        for step in (0, 99_999_999, 100_000_000, 2**31, 2**40, 5):
            checkpoints.save(step, {"x": step})
            checkpoints.wait()
            assert (tmp_path / f"step_{step:08d}").is_dir()
        assert checkpoints.latest() == 2**40
    assert open_source(tmp_path).read("x", ()) == 2**40


def test_a_tilde_is_home_to_whoever_saves_and_whoever_reads(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with Checkpoints("~/run") as checkpoints:
        checkpoints.save(1, {"w": np.ones(3)})
    assert open_source("~/run").arrays().keys() == {"w"}
    assert (tmp_path / "run/step_00000001").is_dir()


def test_only_complete_checkpoints_count(tmp_path):
    (tmp_path / "step_00000007").touch()
    (tmp_path / "step_00000008.tmp-0123abcd").mkdir()
    (tmp_path / "step_00000008.tmp-0123abcd" / "manifest.json").touch()
    (tmp_path / "step_9").mkdir()
    assert Checkpoints(tmp_path).latest() is None


def test_what_killed_runs_left_is_removed_when_the_next_run_opens(tmp_path):
    left, foreign = tmp_path / "step_00000008.tmp-0123abcd", tmp_path / "step_00000008.backup"
    left.mkdir()
    (left / "data-00000-of-00001.zarr.zip").touch()
    foreign.mkdir()
    with Checkpoints(tmp_path):
        assert (left.exists(), foreign.exists()) == (False, True)


def test_a_process_of_a_killed_run_that_still_writes_does_not_keep_the_next_out(tmp_path, monkeypatch):
    left = tmp_path / "step_00000008.tmp-0123abcd"
    left.mkdir()

    def write_just_before(path, *, dir_fd=None, rmdir=os.rmdir):
        with suppress(FileNotFoundError):
            (left / "part-00001.json").touch()
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", write_just_before)
    with Checkpoints(tmp_path):
        assert list(tmp_path.glob("step_*")) == []


def test_a_full_disk_can_be_opened_and_what_filled_it_be_removed(tmp_path):
    (tmp_path / "step_00000008.tmp-0123abcd").mkdir()
    with no_room_for_more_than(0), Checkpoints(tmp_path):
        assert list(tmp_path.glob("step_*")) == []


def test_what_is_in_the_way_of_a_checkpoint_is_set_aside(tmp_path, caplog):
    (tmp_path / "step_00000001").mkdir()
    (tmp_path / "step_00000001" / "notes.txt").touch()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": 1})
    assert open_source(tmp_path).read("x", ()) == 1
    [aside] = tmp_path.glob("step_00000001.damaged-*/notes.txt")
    assert "manifest.json is damaged: it is missing. Copy it" in caplog.text
    assert f"It is kept as {aside.parent.name}; saving again" in caplog.text


def test_a_second_run_is_refused_and_told_who_is_there(tmp_path):
    with (
        Checkpoints(tmp_path),
        pytest.raises(UsageError, match=f"already in use by process {os.getpid()} on "),
    ):
        Checkpoints(tmp_path).__enter__()
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() is None


def test_whether_a_directory_is_held_can_be_asked(tmp_path):
    assert not is_locked(tmp_path / "nowhere")
    with Checkpoints(tmp_path):
        assert is_locked(tmp_path)
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_a_directory_that_cannot_be_opened_is_not_kept_locked(tmp_path):
    link = tmp_path / "step_00000001.tmp-0123abcd"
    link.symlink_to(tmp_path)
    failed = Checkpoints(tmp_path)
    with pytest.raises(MeshwrightError, match="OSError"):
        failed.__enter__()
    next(tmp_path.glob("step_*")).unlink()
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() is None


def test_who_gives_up_waiting_for_the_end_does_not_keep_the_directory_locked(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt) as interrupted, Checkpoints(tmp_path):
        monkeypatch.setattr(ThreadPoolExecutor, "shutdown", interrupt)
    monkeypatch.undo()
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() is None
    assert interrupted  # and with it, in its traceback, the first one


def test_saving_needs_an_open_directory(tmp_path):
    with pytest.raises(UsageError, match="open the directory first"):
        Checkpoints(tmp_path).save(1, {"x": 1})


@pytest.mark.parametrize(
    ("step", "extra", "said"), [(-1, None, "steps count from 0"), (1, {"x": {1}}, "JSON cannot hold")]
)
def test_what_cannot_be_saved_is_refused_at_once(tmp_path, step, extra, said):
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(UsageError, match=said):
        checkpoints.save(step, {"x": 1}, extra)
    assert list(tmp_path.glob("step_*")) == []


def test_the_saver_saves_when_due_and_once_after_the_last_step(tmp_path):
    with Checkpoints(tmp_path, keep=last(10)) as checkpoints:
        save = checkpoints.saver(every(2))
        for step in range(1, 6):
            save(Tick(step), {"x": step}, None, None)
        save(Tick(5, last=True), {"x": 5}, None, None)
    assert sorted(path.name for path in tmp_path.glob("step_*")) == [
        "step_00000002",
        "step_00000004",
        "step_00000005",
    ]


def test_the_saver_does_not_save_the_last_step_twice(tmp_path):
    class Asked(Counting):
        times = 0

        def get_state(self):
            self.times += 1
            return super().get_state()

    with Checkpoints(tmp_path) as checkpoints:
        save, data = checkpoints.saver(every(2)), Asked()
        save(Tick(2), {"x": 2}, data, None)
        save(Tick(2, last=True), {"x": 2}, data, None)
    assert data.times == 1


def test_resume_restores_state_and_data_and_says_from_where(make_state, tmp_path, same_bytes):
    data = Counting()
    next(data)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.saver(every(1))(Tick(3), make_state(seed=3), data, {"loss": 0.5})
    again = Counting()
    with Checkpoints(tmp_path) as checkpoints:
        state = checkpoints.resume(make_state(seed=0), again, otherwise=pytest.fail)
    assert same_bytes(state, make_state(seed=3))
    assert (checkpoints.resumed, next(again)) == (3, 2)
    assert open_source(tmp_path).extra == {"data": {"position": 1}, "scores": {"loss": 0.5}}


def test_step_0_is_resumed_from_like_any_other(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"x": 7})
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.resume({"x": 1}, None, otherwise=pytest.fail) == {"x": 7}
    assert (checkpoints.resumed, checkpoints.latest()) == (0, 0)


def test_scores_are_numbers_and_what_else_an_evaluation_gave_is_not_saved(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        given = {"loss": 0.5, "accuracy": np.float32(0.25), "sample": "once", "picture": object()}
        checkpoints.saver(every(1))(Tick(3), {"x": 1}, None, given)
        checkpoints.wait()
        assert checkpoints.scores() == {"loss": 0.5, "accuracy": 0.25}


def test_without_a_checkpoint_resume_starts_afresh(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.resume({"x": 0}, Counting(), otherwise=lambda: "fresh") == "fresh"
    assert checkpoints.resumed is None


@pytest.mark.parametrize(("saved", "given"), [(Counting(), iter([])), (iter([]), Counting())])
def test_data_is_never_begun_again_unasked(tmp_path, saved, given):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.saver(every(1))(Tick(1), {"x": 1}, saved, None)
        with pytest.raises(CheckpointError, match="the position of the data"):
            checkpoints.resume({"x": 0}, given, otherwise=pytest.fail)


@pytest.mark.parametrize("path", ["file", "file/below", "closed/below"])
def test_a_directory_that_cannot_be_used_is_a_setting_that_is_wrong(tmp_path, path):
    (tmp_path / "file").touch()
    (tmp_path / "closed").symlink_to("/proc/1")  # not even root makes directories there
    with pytest.raises(UsageError, match=rf"{path} cannot be used: .*\n  All processes of the run must see"):
        Checkpoints(tmp_path / path).__enter__()


def test_opening_leaves_nothing_but_the_lock(tmp_path):
    with Checkpoints(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_cast_that_does_not_fit_is_told_before_there_is_a_state(tmp_path):
    checkpoints = Checkpoints(tmp_path, cast=[("params/.*", "bfloat16")])
    checkpoints.check({"params": {"w": jax.ShapeDtypeStruct((3,), np.float32)}})
    with pytest.raises(UsageError, match=r"'params/\.\*' matches no array that can be cast"):
        checkpoints.check({"params": {"w": jax.ShapeDtypeStruct((3,), np.int32)}})


def writers():
    """The threads that save; those that read serve all of a process, as long as it lives."""
    names = ("checkpoint_", "checkpoint-writer")
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


def test_no_thread_is_left_however_a_directory_is_left_and_it_may_be_opened_again(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        assert not writers()
        with checkpoints:
            checkpoints.save(step, {"x": step})
    with pytest.raises(ZeroDivisionError):
        save_and_fail(tmp_path, {"x": 1})
    assert not writers()
    assert checkpoints.latest() == 2


def test_save_returns_before_anything_is_written(tmp_path, monkeypatch):
    begun, returned, pwrite = threading.Event(), threading.Event(), os.pwrite

    def write_after_return(*given):
        begun.set()
        assert returned.wait(60)
        return pwrite(*given)

    monkeypatch.setattr(os, "pwrite", write_after_return)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": np.arange(5)})
        assert begun.wait(60)
        assert checkpoints.latest() is None
        returned.set()
    assert restore(open_source(tmp_path), {"x": np.zeros(5, int)})["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_coroutine_may_save_and_restore(make_state, tmp_path, same_bytes):
    async def saved_and_restored():
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(1, make_state(seed=1))
            await asyncio.sleep(0)
            checkpoints.wait()
            return checkpoints.resume(make_state(seed=2), None, otherwise=pytest.fail)

    assert same_bytes(asyncio.run(saved_and_restored()), make_state(seed=1))


def test_what_a_run_of_another_sharding_left_of_a_step_is_no_obstacle_to_it(make_state, tmp_path, same_bytes):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(seed=1))
    (tmp_path / "step_00000001").rename(tmp_path / "step_00000001.tmp-0123abcd")  # killed before its commit
    whole = jax.tree.map(np.asarray, make_state(seed=2))
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.resume(whole, None, otherwise=lambda: None) is None
        checkpoints.save(1, whole)
    assert same_bytes(restore(open_source(tmp_path), whole), whole)


def test_a_number_keeps_the_newest_so_many(tmp_path):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"x": step})
        checkpoints.wait()
        assert [path.name for path in tmp_path.glob("step_*")] == ["step_00000003"]
        checkpoints.keep = 2
        checkpoints.save(4, {"x": 4})
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_00000003", "step_00000004"]


@pytest.mark.parametrize("keep", [None, 0, -1, True, "2", 1.5])
def test_what_keeps_nothing_is_refused_when_it_is_said(keep, tmp_path):
    with pytest.raises(UsageError, match=r"keep=.*To keep all: mw\.checkpoints\.everything"):
        Checkpoints(tmp_path, keep=keep)
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(UsageError, match="keep="):
        checkpoints.keep = keep
    with pytest.raises(UsageError, match="keep="):
        keep_any(last(1), keep)
