"""What a board tells of processes that go on, wait, stand still, cannot speak, or are gone."""

import contextlib
import dataclasses
import gc
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

import meshwright as mw
from eventually import eventually
from meshwright.cli import main
from meshwright.errors import EXIT_HUNG, UsageError
from meshwright.launch._local import looking_out
from meshwright.observe._profile._xplane import find_profiles
from meshwright.processes._heartbeat import (
    Entry,
    StallMonitor,
    board_directory,
    compared,
    look,
    read_entries,
    write_entry,
)
from meshwright.processes._proc import birth_of, namespace
from meshwright.processes._verdict import _CHECKPOINTS, blamed, verdict
from meshwright.training._heartbeat import on_board
from meshwright.training._phase_clock import PhaseClock

BEAT = 0.01
PLACE = {"phase": "step", "where": "meshwright/training/_loop.py:137 in wait", "is_waiting": True}
STANDING = {"phase": "input", "where": "/home/me/loader.py:12 in read", "is_waiting": False}


def entry(process=0, **more):
    whose = {
        "process": process,
        "num_processes": 3,
        "host": "elsewhere",
        "pid": 1,
        "born": "1",
        "namespace": "",
    }
    times = {"still_seconds": 61.0, "limit_seconds": 30.0, "beat_seconds": BEAT}
    return Entry(**whose | times | {"step": 41, "turns": 7, "beat": 1, "others": []} | PLACE | more)


def seen(*told, beats=1):
    """Return what is seen of processes that tell this, and some time later the same, but for their beats."""
    before = {number: entry(number, **each) for number, each in enumerate(told)}
    after = {
        number: dataclasses.replace(each, beat=each.beat + beats, **told[number].get("later", {}))
        for number, each in before.items()
    }
    return compared(before, after)


@pytest.fixture
def child():
    """A process of this machine that a test may stop and kill."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(100)"])
    yield child
    child.kill()
    child.wait()


def of(child, number=1):
    host = mw.processes._internal.process_identity()[0]
    born = birth_of(child.pid)
    return entry(number, host=host, pid=child.pid, born=born, namespace=namespace())


def states(found):
    return [each.state for each in found]


def last(found):
    return verdict(found).splitlines()[-1]


def test_a_process_that_stands_in_its_own_code_is_the_one_that_the_others_wait_for():
    found = seen({}, STANDING, {})
    assert states(found) == ["waits", "stands", "waits"]
    assert last(found) == (
        "Process 1 stands in the phase input, at /home/me/loader.py:12 in read; the others wait for it."
    )
    rows = verdict(found).splitlines()
    assert rows[1].split()[:4] == ["1", "stands", "input", "41"]
    assert rows[2].startswith("0, 2     waits")
    assert blamed(found) == [1]


def test_a_process_that_tells_nothing_more_does_not_answer():
    before = {number: entry(number) for number in range(3)}
    after = {number: dataclasses.replace(each, beat=2) for number, each in before.items()} | {2: before[2]}
    found = compared(before, after)
    assert states(found) == ["waits", "waits", "does not answer"]
    assert "a call in C keeps Python's lock; the others wait for it. It was last seen in" in last(found)


def test_a_process_without_an_entry_has_left():
    found = compared({0: entry(0), 1: entry(1)}, {0: entry(0, beat=2), 1: entry(1, beat=2)})
    assert states(found) == ["waits", "waits", "has left"]
    assert last(found) == "Process 2 has left the run, or not begun; the others wait for it."


def test_processes_that_wait_in_different_places_take_different_branches():
    found = seen({}, {}, {"where": "/home/me/train.py:33 in when", "step": 40})
    assert last(found).startswith("All wait, but process 2 waits elsewhere, in the phase step, at /home/me/")
    assert last(found).endswith("Some are after step 40, others after step 41.")
    assert blamed(found) == [2]


def test_processes_that_all_wait_in_one_place_wait_for_a_device():
    assert "a device or a collective operation does not end" in last(seen({}, {}, {}))
    assert blamed(seen({}, {}, {})) == []


def test_a_run_that_goes_on_is_said_to():
    found = compared(
        {0: entry(0), 1: entry(1), 2: entry(2)}, {n: entry(n, beat=2, turns=8) for n in range(3)}
    )
    assert last(found) == "All processes work."


def test_linux_tells_of_a_process_that_was_stopped(child):
    child.send_signal(signal.SIGSTOP)
    eventually(lambda: compared({1: of(child)}, {1: of(child)})[1].state != "does not answer")
    found = compared({1: of(child)}, {1: of(child)})
    assert found[1].state == "stopped by a signal"
    assert f"`kill -CONT {child.pid}` on {mw.processes._internal.process_identity()[0]}" in last(found)


def test_linux_tells_of_a_process_that_is_gone_and_of_another_of_its_number(child):
    told = of(child)
    other = dataclasses.replace(told, born="1")
    assert compared({1: other}, {1: other})[1].state == "gone"
    child.kill()
    child.wait()
    assert compared({1: told}, {1: told})[1].state == "gone"


def test_a_hang_is_noticed_once_by_the_readers_clock():
    watched, told = StallMonitor(), {0: entry(0, still_seconds=1e9)}
    assert [watched.late(told, now) for now in (0.0, 29.0, 31.0, 32.0)] == [{}, {}, told, {}]
    later = {0: entry(0, turns=8)}
    assert [watched.late(later, now) for now in (33.0, 60.0, 64.0)] == [{}, {}, later]


def test_a_process_of_an_attempt_before_is_not_late(child):
    told = {1: of(child)}
    child.kill()
    child.wait()
    watched = StallMonitor()
    assert [watched.late(told, now) for now in (0.0, 100.0)] == [{}, {}]


@pytest.fixture
def between(monkeypatch):
    """What happens between two readings of a look, by the number of the pause; the pauses take no time."""
    acts, pauses = {}, []

    def pause(seconds):
        pauses.append(seconds)
        acts.get(len(pauses), lambda: None)()

    clock = SimpleNamespace(sleep=pause, monotonic=lambda: sum(pauses))
    monkeypatch.setattr("meshwright.processes._heartbeat.time", clock)
    return acts


def write_all(directory, *entries):
    for each in entries:
        write_entry(directory, each)


def test_a_process_that_gets_no_time_for_a_while_is_not_said_not_to_answer(tmp_path, between):
    write_all(tmp_path, *map(entry, range(3)))
    between[20] = lambda: write_all(tmp_path, *[entry(number, beat=2) for number in range(3)])
    assert states(look(tmp_path)) == ["waits", "waits", "waits"]


@contextlib.contextmanager
def launcher_says(folder, between, monkeypatch, **later):
    """Give what a launcher says of a process that is late and of one that waits for it, and how often it has
    read the board.

    The entries are written again after the launcher has noticed the first one, which then tells `later`.
    """
    said, readings, board = [], [], folder / "board"
    reading = lambda directory: readings.append(1) or read_entries(directory)
    monkeypatch.setattr("meshwright.launch._local.read_entries", reading)
    board.mkdir()
    (folder / "progress.board").write_text(str(board))
    late = entry(num_processes=2, limit_seconds=BEAT / 2, **STANDING)
    waits = entry(1, num_processes=2, limit_seconds=None)
    write_all(board, late, waits)
    again = dataclasses.replace(waits, beat=2), dataclasses.replace(late, beat=2, **later)
    between[1] = lambda: write_all(board, *again)
    with looking_out(folder / "progress", said.append):
        yield said, readings


def test_a_launcher_says_nothing_of_a_process_that_went_on_while_it_looked(tmp_path, between, monkeypatch):
    with launcher_says(tmp_path, between, monkeypatch, turns=8, limit_seconds=900) as (said, readings):
        eventually(lambda: len(readings) > 4)  # it looks after the second
        assert said == []


def test_a_launcher_says_where_a_process_stands_that_did_not_go_on(tmp_path, between, monkeypatch):
    with launcher_says(tmp_path, between, monkeypatch) as (said, _):
        eventually(lambda: said)
        assert said[0].startswith("the run stands still:")


def test_entries_are_read_as_written_and_damaged_ones_left_out(tmp_path):
    for number in range(3):
        write_entry(tmp_path, entry(number, others=["a.py:1 in f"]))
    write_entry(tmp_path, entry(9))  # of an attempt with more processes
    (tmp_path / "process-00002.json").write_text('{"process": 2')
    assert read_entries(tmp_path) == {number: entry(number, others=["a.py:1 in f"]) for number in range(2)}


def test_a_board_that_is_removed_while_it_is_read_has_no_entries_and_a_run_no_profile(tmp_path, monkeypatch):
    def scandir(path):  # as if the last process removed the folder just before
        raise FileNotFoundError(path)

    monkeypatch.setattr("os.scandir", scandir)
    assert read_entries(tmp_path) == {}
    with pytest.raises(mw.errors.InputError, match="has no profile"):
        find_profiles(tmp_path)


def test_a_run_in_a_store_has_its_board_on_this_machine():
    assert board_directory("runs/a").as_posix() == "runs/a/board"
    assert board_directory("s3://b/runs/a") == board_directory("s3://b/runs/a/")
    assert board_directory("s3://b/runs/a") != board_directory("s3://b/runs/b")


def test_where_nothing_is_known_no_place_is_told():
    found = seen({"where": ""}, {})
    found[0] = dataclasses.replace(found[0], state="does not answer")
    assert last(found).endswith("It was last seen in the phase step.")


def test_a_process_that_waits_for_the_place_of_its_checkpoints_says_so():
    place = {
        "where": "meshwright/checkpoints/_saving.py:1 in f",
        "others": ["meshwright/base/_storage/_path.py:2 in g"],
    }
    assert all(Path(mw.__file__).parents[1].joinpath(folder).is_dir() for folder in _CHECKPOINTS)
    found = seen(STANDING | {"phase": "save"} | place, {})
    assert last(found).endswith("The disk or the store of the checkpoints does not answer, or is slow.")
    user = {**place, "others": ["model.py:2 in keep"]}
    assert "store" not in last(seen(STANDING | {"phase": "save"} | user, {}))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("meshwright.training._heartbeat._BEAT_SECONDS", BEAT)
    monkeypatch.setattr("meshwright.training._heartbeat._PROCESSES_A_SECOND", 1e9)


def stepping(clock, steps=25):
    for step in range(steps):
        clock.finish_step(step)


def test_a_process_that_stands_still_says_where_all_stand(tmp_path, capfd, quick):
    clock = PhaseClock()
    with on_board(tmp_path / "board", clock, 0.05):
        stepping(clock)
        read = []
        eventually(lambda: read.append(capfd.readouterr().err) or "Process 0" in "".join(read))
    told = "".join(read)
    assert "process 0 stands still for longer than 0 s" in told
    assert "Process 0 stands in the phase step, at" in told
    assert told.count("stands still") == 1
    assert not (tmp_path / "board").exists()


def test_a_process_is_ended_after_its_look_at_the_others_and_says_for_which_one_it_waited(
    tmp_path, capfd, quick, monkeypatch
):
    clock, go_on, codes = PhaseClock(), threading.Event(), []

    def looking(directory):
        go_on.wait(60)
        return seen({}, STANDING, {})

    monkeypatch.setattr("meshwright.training._heartbeat.look", looking)
    monkeypatch.setattr("os._exit", codes.append)
    with on_board(tmp_path / "board", clock, 0.05, kill=True):
        stepping(clock)
        eventually(lambda: read_entries(tmp_path / "board"))
        eventually(lambda: read_entries(tmp_path / "board")[0].still_seconds > 0.3)
        assert codes == []
        go_on.set()
        eventually(lambda: codes)
    assert set(codes) == {EXIT_HUNG}
    assert "error: process 1: it stands still, and this process waits for it" in capfd.readouterr().err


def test_by_default_a_run_says_which_process_is_stopped_before_jax_ends_the_others():
    timeout = inspect.signature(mw.parallel.start_processes).parameters["heartbeat_timeout_seconds"].default
    within_seconds = 10  # docs/how-to/debugging.md
    # Counted from the last heartbeat, of which JAX sends two in this time.
    assert mw.Watchdog().shortest_seconds + within_seconds < timeout / 2


def test_nothing_is_said_of_a_run_that_goes_on_nor_of_a_phase_whose_time_is_not_known(tmp_path, capfd, quick):
    clock, board = PhaseClock(), tmp_path / "board"

    def beats(number=40):
        """For so many beats, more than the shortest time that is unusual."""
        eventually(lambda: read_entries(board))
        last = read_entries(board)[0].beat + number
        while read_entries(board)[0].beat < last:
            yield time.sleep(0.001)

    with on_board(board, clock, 0.3):
        clock.enter("compile")
        list(beats())
        for _ in beats():
            stepping(clock)
        clock.enter("evaluation")
        list(beats())
    assert capfd.readouterr().err == ""


def test_the_doctor_asks_a_run_that_goes_on(tmp_path, capsys, quick):
    clock = PhaseClock()
    with on_board(tmp_path / "board", clock, 60):
        stepping(clock)
        clock.enter("evaluation")
        eventually(lambda: read_entries(tmp_path / "board"))
        assert main(["doctor", str(tmp_path)]) == 0
        assert "evaluation" in capsys.readouterr().out
        assert main(["doctor", str(tmp_path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
    assert (found["hangs"], found["processes"][0]["state"]) == (False, "stands")


def test_the_doctor_says_if_a_run_hangs_or_tells_nothing(tmp_path, capsys, between):
    directory = tmp_path / "board"
    directory.mkdir()
    write_entry(directory, entry(0, num_processes=1))
    assert main(["doctor", str(tmp_path)]) == EXIT_HUNG
    assert "does not answer" in capsys.readouterr().out
    assert main(["doctor", str(tmp_path / "other")]) == 3
    assert "no process of" in capsys.readouterr().err


def test_looking_at_nothing_finds_nothing(tmp_path):
    assert look(tmp_path) == []


def test_what_the_users_functions_hold_goes_when_they_let_go_of_it(tmp_path, quick):
    class Held:
        pass

    def hold(held):
        beats = read_entries(tmp_path)[0].beat
        eventually(lambda: read_entries(tmp_path)[0].beat > beats + 2)
        return weakref.ref(held)

    gc.disable()
    try:
        with on_board(tmp_path, PhaseClock(), 60):
            eventually(lambda: read_entries(tmp_path))
            held = hold(Held())
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "more",
    [
        {"num_processes": 10**12},
        {"num_processes": "three"},
        {"process": -1},
        {"beat_seconds": float("nan")},
        {"still_seconds": "1e999"},
        {"others": 5},
        {"step": []},
    ],
    ids=str,
)
def test_a_crafted_entry_is_left_out(tmp_path, more):
    told = dataclasses.asdict(entry(0)) | more
    (tmp_path / "process-00000.json").write_text(json.dumps(told))
    assert read_entries(tmp_path) == {}


def test_a_crafted_entry_neither_writes_to_the_terminal_nor_makes_the_reader_wait(tmp_path):
    told = dataclasses.asdict(entry(0, where="\x1b]0;title\x07", beat_seconds=1e9))
    (tmp_path / "process-00000.json").write_text(json.dumps(told))
    found = read_entries(tmp_path)[0]
    assert "\x1b" not in found.where
    assert found.beat_seconds == 10.0


def test_the_board_of_a_run_in_a_store_is_not_where_a_link_leads(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    board_directory("s3://bucket/run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a link, or belongs to somebody else"):
        board_directory("s3://bucket/run")


def test_the_board_of_a_run_in_a_store_is_not_another_users(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    board = board_directory("s3://bucket/run")
    board.mkdir()
    stat = Path.stat
    other = SimpleNamespace(st_uid=os.getuid() + 1, st_mode=stat(board).st_mode)
    monkeypatch.setattr(Path, "stat", lambda path, **how: other if path == board else stat(path, **how))
    with pytest.raises(UsageError, match="is a link, or belongs to somebody else"):
        board_directory("s3://bucket/run")
