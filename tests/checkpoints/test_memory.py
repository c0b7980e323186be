"""Checkpoints in the memory of a host: made, found again, passed over, and kept within their budget."""

import errno
import os
import resource
import shutil
import threading
from concurrent import futures
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from checkpoints.test_read import DATA_FILE, chunks_of, flip_a_bit
from disk import no_room_for_more_than
from engine.experiment.runs import experiment, losses
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._host_memory._budget import InMemory, steps_to_remove
from meshwright.checkpoints._host_memory._host_directory import completed
from meshwright.errors import DamagedError, MeshwrightError, UsageError
from meshwright.processes._when import Tick, at, never

SIZE = 1000
NBYTES = 11_000  # about the size of a checkpoint, with the names in its file
TARGET = {"x": np.zeros(SIZE), "step": 0}


class KilledError(Exception):
    """Ends a run without the save at its end."""


class Run:
    """A run with checkpoints on disk and in memory, one attempt after the other."""

    def __init__(self, folder, **settings):
        self.disk, self.root = folder / "checkpoints", folder / "memory"
        self.root.mkdir()
        self.settings = {"every": 1, "budget_nbytes": 10 * NBYTES, "directory": str(self.root)} | settings
        self.told = []

    def open(self):
        checkpoints = Checkpoints(self.disk, memory=InMemory(**self.settings))
        assert checkpoints.host_memory is not None
        checkpoints.host_memory.on_skip = self.told.append
        return checkpoints

    def attempt(self, upto, on_disk=never, killed=True):
        """Train to a step, and end without saving if the run is killed; return the checkpoints."""
        try:
            with self.open() as checkpoints:
                state = checkpoints.resume(TARGET, None, otherwise=lambda: TARGET)
                assert (state["x"] == state["step"]).all()
                save = checkpoints.saver(on_disk)
                for step in range(state["step"] + 1, upto + 1):
                    save(Tick(step), {"x": np.full(SIZE, float(step)), "step": step}, None, {})
                    settle(checkpoints)
                if killed:
                    raise KilledError
                save(Tick(upto, last=True), {"x": np.full(SIZE, float(upto)), "step": upto}, None, {})
        except KilledError:
            pass
        return checkpoints

    def place(self):
        [place] = self.root.iterdir()
        return place

    def steps(self):
        return sorted(int(path.name.removeprefix("step_")) for path in self.root.glob("*/step_*"))

    def data(self, step):
        return self.place() / f"step_{step:08d}" / DATA_FILE


def settle(checkpoints):
    """Wait until nothing is being written to memory."""
    if (writing := checkpoints.host_memory._writing) is not None:
        futures.wait([writing.task])


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_a_killed_run_continues_from_the_newest_step_in_memory(run):
    run.attempt(upto=7, on_disk=at(4))
    found = run.attempt(upto=7)
    assert (found.resumed, found.is_from_memory, found.passed_over) == (7, True, ())


def test_a_newer_checkpoint_on_disk_is_taken_instead(run):
    run.attempt(upto=5)
    run.settings["every"] = 100
    run.attempt(upto=8, on_disk=at(8))
    found = run.attempt(upto=8)
    assert (found.resumed, found.is_from_memory) == (8, False)
    assert run.steps() == []  # nothing there that a restart could use


def test_the_directory_is_removed_when_the_run_ends_well(run):
    run.attempt(upto=5, killed=False)
    assert list(run.root.iterdir()) == []
    assert run.attempt(upto=5).resumed == 5


def test_the_directory_stays_while_it_has_what_the_disk_lacks(run):
    run.attempt(upto=5, on_disk=at(3))
    assert max(run.steps()) == 5


def test_a_checkpoint_in_memory_is_one_like_all_others(run):
    run.attempt(upto=3)
    source = mw.checkpoints.open_source(run.place() / "step_00000003")
    assert (mw.restore(source, TARGET)["x"] == 3).all()
    assert mw.checkpoints.verify(run.place() / "step_00000003").damage == ()


def test_damage_in_memory_makes_the_run_take_the_one_before_and_is_told(run, caplog):
    run.attempt(upto=4)
    flip_a_bit(run.data(4), chunks_of(run.data(4).parent, "x")[0][1])
    found = run.attempt(upto=3)
    assert (found.resumed, found.is_from_memory) == (3, True)
    [said] = found.passed_over
    assert said.startswith("step 4 in memory is damaged; continuing from step 3 in memory instead.")
    assert said in caplog.messages
    assert run.steps() == [3]


@pytest.mark.parametrize("lost", ["file", "end", "manifest"])
def test_what_is_not_complete_is_never_taken_and_is_told(run, lost):
    run.attempt(upto=4, on_disk=at(2))
    for step in (3, 4):
        if lost == "file":
            run.data(step).unlink()
        elif lost == "end":
            run.data(step).write_bytes(run.data(step).read_bytes()[:-1])
        else:
            (run.data(step).parent / "manifest.json").write_bytes(b"{}")
    run.data(2).unlink()
    found = run.attempt(upto=2)
    assert (found.resumed, found.is_from_memory) == (2, False)
    assert [said.partition(":")[0] for said in found.passed_over] == [
        "step 3 in memory is not complete",
        "step 4 in memory is not complete",
    ]
    assert all(said.endswith("continuing from step 2") for said in found.passed_over)


def test_a_run_of_which_only_memory_had_something_starts_from_the_beginning_and_says_so(run):
    run.attempt(upto=1)
    flip_a_bit(run.data(1), chunks_of(run.data(1).parent, "x")[0][1])
    found = run.attempt(upto=0)
    assert found.resumed is None
    [said] = found.passed_over
    assert "starting from the beginning instead" in said


def test_damage_on_disk_is_not_given_up_because_memory_is_damaged_too(run):
    run.attempt(upto=2, on_disk=at(1))
    flip_a_bit(run.data(2), chunks_of(run.data(2).parent, "x")[0][1])
    flip_a_bit(run.data(1), chunks_of(run.data(1).parent, "x")[0][1])
    on_disk = run.disk / "step_00000001"
    flip_a_bit(on_disk / DATA_FILE, chunks_of(on_disk, "x")[0][1])
    with pytest.raises(DamagedError, match="all checkpoints are damaged"):
        run.attempt(upto=3)


def test_a_directory_that_an_ending_process_removes_at_the_start_is_told_as_that_and_not_as_a_wrong_setting(
    run, monkeypatch
):
    make = Path.mkdir

    def make_and_lose(path, *args, **kwargs):
        make(path, *args, **kwargs)
        if path.parent == run.root:
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", make_and_lose)
    with pytest.raises(MeshwrightError, match=r"was removed while this run started") as told, run.open():
        pass
    assert not isinstance(told.value, UsageError)  # a launcher starts again


def test_a_run_whose_directory_was_removed_does_not_find_its_memory(run, tmp_path):
    run.attempt(upto=5)
    run.disk.rename(tmp_path / "elsewhere")
    assert run.attempt(upto=1).resumed is None
    assert run.steps() == [1]


def test_memory_is_not_taken_after_the_run_has_gone_on_without_it(run):
    run.attempt(upto=5, on_disk=at(2))
    with Checkpoints(run.disk) as checkpoints:
        checkpoints.save(3, {"x": np.full(SIZE, 3.0), "step": 3})
    found = run.attempt(upto=4)
    assert (found.resumed, found.is_from_memory) == (3, False)


def test_memory_is_still_taken_after_somebody_has_only_read(run):
    run.attempt(upto=5, on_disk=at(2))
    assert Checkpoints(run.disk).resume(TARGET, None, otherwise=pytest.fail)["step"] == 2
    assert run.attempt(upto=5).is_from_memory


def test_memory_that_was_forgotten_stays_forgotten_on_hosts_that_were_away(run, tmp_path):
    run.attempt(upto=5, on_disk=at(2))
    away = run.place().rename(tmp_path / "away")
    with run.open() as checkpoints:
        checkpoints.host_memory.invalidate()  # as a run does that goes back to an earlier step
    away.rename(run.root / away.name)
    assert run.attempt(upto=2).resumed == 2


def test_of_what_is_forgotten_after_a_step_the_steps_before_stay(run, tmp_path):
    run.attempt(upto=5, on_disk=at(2))
    away = shutil.copytree(run.place(), tmp_path / "away")
    with run.open() as checkpoints:
        checkpoints.host_memory.invalidate(4)  # as a run does that goes back before a spike
    assert run.steps() == [1, 2, 3, 4]
    found = run.attempt(upto=4)
    assert (found.resumed, found.is_from_memory) == (4, True)
    here = run.place()
    shutil.rmtree(here)
    away.rename(here)
    assert run.attempt(upto=2).resumed == 2  # what a host had that was away is invalid


@pytest.mark.parametrize("num_kept", [2, 3, 5])
def test_as_many_are_kept_as_the_budget_has_room_for_while_one_more_is_written(tmp_path, num_kept):
    run = Run(tmp_path, budget_nbytes=num_kept * NBYTES)
    run.attempt(upto=8)
    assert run.steps() == list(range(9 - num_kept, 9))
    assert sum(path.stat().st_size for path in run.root.rglob("*.zip")) <= num_kept * NBYTES


@given(
    steps=st.sets(st.integers(1, 50)),
    complete=st.none() | st.integers(1, 50),
    num_fit=st.integers(2, 6),
)
def test_removal_makes_room_for_one_more_and_never_takes_the_newest_complete_one(steps, complete, num_fit):
    there = sorted(steps | ({complete} if complete else set()))
    equal = dict.fromkeys(there, 100)
    removed = steps_to_remove(equal, complete, nbytes=100, budget_nbytes=100 * num_fit + 99)
    left = sorted(set(there) - set(removed))
    assert len(left) + 1 <= num_fit
    assert complete in left or complete is None
    assert not left or left[-1] == complete


def test_checkpoints_of_more_processes_on_a_host_count_with_their_own_size():
    assert steps_to_remove({1: 150, 2: 100, 3: 100}, 3, nbytes=100, budget_nbytes=400) == [1]
    assert steps_to_remove({1: 50, 2: 100, 3: 100}, 3, nbytes=100, budget_nbytes=400) == []
    assert steps_to_remove({1: 50, 2: 400}, 2, nbytes=100, budget_nbytes=400) == [1]


def test_a_budget_in_which_two_do_not_fit_is_refused_before_training(tmp_path):
    wanted = pytest.raises(UsageError, match=r"and two must fit.*\. Give at least budget_nbytes=\d+")
    with Run(tmp_path, budget_nbytes=NBYTES).open() as checkpoints, wanted:
        checkpoints.check_memory(TARGET)


def test_a_file_system_in_which_two_do_not_fit_is_refused_before_training(run, monkeypatch):
    small = os.statvfs_result((4096, 4096, 4, 4, 4, 10, 10, 10, 0, 255))
    with run.open() as checkpoints:
        monkeypatch.setattr(os, "statvfs", lambda path: small)
        with pytest.raises(UsageError, match=r"holds 16 KiB, but a checkpoint takes.*--shm-size"):
            checkpoints.check_memory(TARGET)


def test_a_directory_that_is_not_there_is_refused(tmp_path):
    run = Run(tmp_path)
    run.root.rmdir()
    with pytest.raises(UsageError, match=r"no checkpoints can be kept in .*memory: No such file"):
        run.attempt(upto=1)


@pytest.mark.parametrize("kind", ["link", "open to others"])
def test_a_directory_in_which_others_may_write_is_refused(run, tmp_path, kind):
    run.attempt(upto=1)
    if kind == "link":
        place = run.place()
        place.rename(tmp_path / "elsewhere")
        place.symlink_to(tmp_path / "elsewhere")
    else:
        run.place().chmod(0o777)
    with pytest.raises(UsageError, match=r"is a link or a file, .*, or others may write"):
        run.attempt(upto=2)


def test_a_full_memory_skips_a_save_says_why_and_nothing_is_lost(run):
    run.settings["every"] = 2
    with run.open() as checkpoints:
        checkpoints.resume(TARGET, None, otherwise=lambda: TARGET)
        save = checkpoints.saver(at(3))
        for step in range(1, 11):
            room = 4000 if step in (4, 6) else resource.RLIM_INFINITY
            with no_room_for_more_than(room):
                save(Tick(step), {"x": np.full(SIZE, float(step)), "step": step}, None, {})
                settle(checkpoints)
                checkpoints.wait()
        assert run.steps() == [2, 8, 10]
        assert checkpoints.latest() == 3
    [said] = run.told
    assert said.startswith(f"step 4 is not kept in memory: process 0: {os.strerror(errno.EFBIG)}")
    assert said.endswith("The run goes on, and saves as before.")


def test_while_one_is_being_written_no_other_begins(run):
    going_on = threading.Event()
    with run.open() as checkpoints:
        checkpoints.before_commit = going_on.wait
        save = checkpoints.saver(never)
        saved = [save(Tick(step), {**TARGET, "step": step}, None, {}) for step in (1, 2, 3)]
        going_on.set()
        settle(checkpoints)
        assert save(Tick(4), {**TARGET, "step": 4}, None, {})
        settle(checkpoints)
        assert run.steps() == [1, 4]
    assert saved == [True, False, False]
    [said] = run.told
    assert "step 2 is not kept in memory: the one before is still being written" in said


def test_what_is_not_open_does_not_pass_over_memory_silently(run):
    run.attempt(upto=5)
    with pytest.raises(UsageError, match="found only while the directory is open"):
        run.open().resume(TARGET, None, otherwise=pytest.fail)


def test_parts_of_different_starts_are_not_one_checkpoint():
    assert completed([{"10": "aaaa", "20": "aaaa"}, {"10": "aaaa", "20": "bbbb"}]) == (
        [10],
        {20: "its parts are from different starts of the run"},
    )


@given(
    st.lists(
        st.dictionaries(st.integers(1, 9).map(str), st.sampled_from(["a", "b", "!torn"])),
        min_size=1,
        max_size=4,
    )
)
def test_complete_is_what_every_process_has_of_one_start(held):
    found, wrong = completed(held)
    assert set(found).isdisjoint(wrong)
    assert {*map(str, found), *map(str, wrong)} == {step for each in held for step in each}
    for step in found:
        parts = {each.get(str(step)) for each in held}
        assert len(parts) == 1
        assert parts <= {"a", "b"}


@given(
    num_fit=st.integers(2, 4),
    history=st.lists(st.lists(st.sampled_from(["written", "failed"]), min_size=3, max_size=3), max_size=12),
    at_the_kill=st.lists(st.sampled_from(["not begun", "made room", "written"]), min_size=3, max_size=3),
)
def test_whenever_hosts_are_killed_they_have_the_newest_step_that_all_had(num_fit, history, at_the_kill):
    hosts, complete = [set() for _ in at_the_kill], None

    def make_room(host):
        host -= set(steps_to_remove(dict.fromkeys(host, 100), complete, 100, 100 * num_fit))

    for step, outcomes in enumerate(history, 1):
        for host, outcome in zip(hosts, outcomes, strict=True):
            make_room(host)
            assert len(host) < num_fit
            host |= {step} if outcome == "written" else set()
        complete = step if set(outcomes) == {"written"} else complete
    for host, reached in zip(hosts, at_the_kill, strict=True):
        if reached != "not begun":
            make_room(host)
        host |= {99} if reached == "written" else set()
    found, _ = completed([{str(step): "5e0c" for step in host} for host in hosts])
    assert complete is None or complete in found
    assert (99 in found) == (set(at_the_kill) == {"written"})


def test_an_open_that_fails_leaves_nothing_locked(run, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(
            "meshwright.checkpoints._host_memory._checkpoints.ThreadPoolExecutor", lambda *_: 1 / 0
        )
        with pytest.raises(ZeroDivisionError):
            run.attempt(upto=1)
    assert run.attempt(upto=1).resumed is None


@pytest.mark.parametrize("wrong", [{"every": 0}, {"budget_nbytes": 1.5}, {"directory": "memory"}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError, match=f"InMemory.{next(iter(wrong))} is"):
        InMemory(**wrong)


def test_an_experiment_continues_from_memory_to_the_bit(tmp_path, capsys, monkeypatch):
    (tmp_path / "memory").mkdir()
    memory = InMemory(every=1, budget_nbytes=1 << 20, directory=str(tmp_path / "memory"))

    def described(name):
        return experiment(
            tmp_path / name, save=mw.Save(when=100, memory=memory), logging=mw.Logging(every=1), max_steps=8
        )

    mw.run(described("undisturbed"))
    save = Checkpoints._save_in_memory

    def killed_after_5(checkpoints, step, *rest):
        if step == 6:
            raise KilledError
        save(checkpoints, step, *rest)
        settle(checkpoints)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "_save_in_memory", killed_after_5)
        with pytest.raises(KilledError):
            mw.run(described("killed"))
    capsys.readouterr()
    mw.run(described("killed"))
    assert "continuing after step 5, from memory" in capsys.readouterr().err
    assert losses(tmp_path / "killed") == losses(tmp_path / "undisturbed")
    assert list((tmp_path / "memory").iterdir()) == []
