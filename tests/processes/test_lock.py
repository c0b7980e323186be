"""One process holds a directory, on file systems with locks and without."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from meshwright.errors import UsageError
from meshwright.processes import _internal as processes

HOLD = """
import errno, fcntl, os, sys
from pathlib import Path
from meshwright.processes import _internal as processes

held = processes.lock_directory(Path(sys.argv[1]))
def flock(file, how):
    raise OSError(errno.ENOLCK, "no locks")
fcntl.flock = flock
held_too = processes.lock_directory(Path(sys.argv[2]))
if not (pid := os.fork()):  # a data loader's worker
    held.close()
    held_too.close()
    os._exit(0)
os.waitpid(pid, 0)
print("held", flush=True)
sys.stdin.read()
"""


def no_locks(monkeypatch, number=errno.ENOLCK):
    def flock(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.fixture(params=["locks", "no locks"])
def file(request, tmp_path, monkeypatch):
    if request.param == "no locks":
        no_locks(monkeypatch)
    return tmp_path / "run" / ".lock"


def left_by(file, **changes):
    """Leave what a killed process leaves that held the directory, with changes to what it says."""
    with_pid = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    held = processes.lock_directory(file)
    name = file.with_name(f"{file.name}.holder")
    said = json.loads(name.read_text())
    held.close()
    file.touch()
    name.write_text(json.dumps(said | {"pid": int(with_pid.stdout), "began": "1"} | changes))
    return name


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_no_hindrance(number, tmp_path, monkeypatch):
    no_locks(monkeypatch, number)
    processes.lock_directory(tmp_path / ".lock").close()


def test_a_second_one_is_refused_and_told_who_is_there_and_nothing_of_it_is_left(file):
    held = processes.lock_directory(file)
    assert processes.is_locked(file)
    with pytest.raises(UsageError, match=rf"{file.parent} is already in use by process {os.getpid()} on "):
        processes.lock_directory(file)
    held.close()
    assert not processes.is_locked(file)
    assert [path.name for path in file.parent.iterdir()] == [".lock"]
    processes.lock_directory(file).close()


def test_a_process_of_a_launcher_waits_for_one_of_an_earlier_start_that_is_ending(file, monkeypatch, caplog):
    monkeypatch.setenv("MESHWRIGHT_PROGRESS", "progress")
    held = processes.lock_directory(file)
    monkeypatch.setattr(time, "sleep", lambda seconds: held.close())
    processes.lock_directory(file).close()
    assert f"{file.parent} is in use by process {os.getpid()} on " in caplog.text
    assert "waiting up to 10 s" in caplog.text


def test_it_is_refused_if_the_other_one_does_not_end(file, monkeypatch, caplog):
    monkeypatch.setenv("MESHWRIGHT_PROGRESS", "progress")
    monkeypatch.setattr("meshwright.processes._lock.WAIT_SECONDS", 0.03)
    monkeypatch.setattr("meshwright.processes._lock._POLL_SECONDS", 0.01)
    held = processes.lock_directory(file)
    with pytest.raises(UsageError, match="is already in use"):
        processes.lock_directory(file)
    assert caplog.text.count("waiting up to") == 1
    held.close()


def test_another_process_holds_whatever_its_forks_do_until_it_is_killed_wherever_there_are_locks(
    tmp_path, monkeypatch
):
    files = tmp_path / "locks" / ".lock", tmp_path / "no locks" / ".lock"
    command = [sys.executable, "-c", HOLD, *map(str, files)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        for _ in range(2):  # seen from where there are locks, and from where there are none
            for file in files:
                assert processes.is_locked(file)
                with pytest.raises(UsageError, match=f"in use by process {holder.pid} on "):
                    processes.lock_directory(file)
            no_locks(monkeypatch)
        holder.kill()
    for file in files:
        assert not processes.is_locked(file)
        processes.lock_directory(file).close()


def test_without_locks_a_process_of_another_machine_is_never_taken_for_dead(tmp_path, monkeypatch):
    no_locks(monkeypatch)
    name = left_by(tmp_path / ".lock", machine="another", host="far")
    with pytest.raises(UsageError, match=rf"on far .*\n  If that process has ended, delete {name}.*-o flock"):
        processes.lock_directory(tmp_path / ".lock")
    assert processes.is_locked(tmp_path / ".lock")
    name.unlink()
    processes.lock_directory(tmp_path / ".lock").close()


def test_who_was_killed_while_it_removed_the_name_of_a_dead_one_is_no_hindrance(tmp_path):
    name = left_by(tmp_path / ".lock")
    name.with_name(f"{name.name}.{json.loads(name.read_text())['token']}").touch()
    processes.lock_directory(tmp_path / ".lock").close()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_where_a_lock_is_had_a_name_from_another_machine_is_told(tmp_path, caplog):
    left_by(tmp_path / ".lock", machine="another", host="far")
    processes.lock_directory(tmp_path / ".lock").close()
    assert "on far" in caplog.text
    assert "and the locks of this file system work on one machine only" in caplog.text


def test_without_locks_a_name_that_was_never_written_holds_and_with_them_it_does_not(tmp_path, monkeypatch):
    (tmp_path / ".lock.holder").touch()
    with monkeypatch.context() as patched:
        no_locks(patched)
        with pytest.raises(UsageError, match=r"in use by another process.*\n.*delete .*\.lock\.holder"):
            processes.lock_directory(tmp_path / ".lock")
    processes.lock_directory(tmp_path / ".lock").close()


@pytest.mark.parametrize(
    "said", [{"pid": -1}, {"token": "../../x"}, {"host": "\x1b[2J"}, {"of": "another version"}]
)
def test_what_is_no_name_is_taken_for_none(said, tmp_path, monkeypatch):
    left_by(tmp_path / ".lock", **said)
    with monkeypatch.context() as patched:
        no_locks(patched)
        with pytest.raises(UsageError, match="in use by another process"):
            processes.lock_directory(tmp_path / ".lock")
    processes.lock_directory(tmp_path / ".lock").close()
    (tmp_path / ".lock.holder").write_text("[" * 100_000)
    processes.lock_directory(tmp_path / ".lock").close()


def test_a_number_that_another_process_has_now_is_not_the_holder(tmp_path, monkeypatch):
    no_locks(monkeypatch)
    left_by(tmp_path / ".lock", pid=os.getppid())
    processes.lock_directory(tmp_path / ".lock").close()


def test_of_many_who_find_a_dead_ones_name_one_at_a_time_holds(tmp_path, monkeypatch):
    no_locks(monkeypatch)
    file, inside, most, won = tmp_path / ".lock", [], [], []
    left_by(file)

    def take():
        try:
            held = processes.lock_directory(file)
        except UsageError:
            return
        inside.append(1)
        most.append(len(inside))
        won.append(1)
        time.sleep(0.001)
        inside.pop()
        held.close()

    for _ in range(20):
        threads = [threading.Thread(target=take) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        left_by(file)
    assert max(most) == 1
    assert len(won) >= 20


def test_whoever_took_over_by_hand_is_not_robbed(tmp_path, monkeypatch):
    no_locks(monkeypatch)
    first = processes.lock_directory(tmp_path / ".lock")
    (tmp_path / ".lock.holder").unlink()
    second = processes.lock_directory(tmp_path / ".lock")
    first.close()
    assert processes.is_locked(tmp_path / ".lock")
    second.close()
