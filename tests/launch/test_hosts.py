"""Launchers that act together, as on several machines: real ones, all on this one, without JAX."""

import contextlib
import signal
import socket
import subprocess
import sys

import pytest

from eventually import eventually
from meshwright.errors import UsageError
from meshwright.launch._hosts import launch_hosts
from meshwright.launch._local import free_port

PROGRAM = """
import os, pathlib, sys, time
number, of = os.environ["JAX_PROCESS_ID"], os.environ["JAX_NUM_PROCESSES"]
place = pathlib.Path(sys.argv[1])
again = len(list(place.glob(f"{number}-*")))
(place / f"{number}-{again}").write_text(f"{of} {os.environ['JAX_COORDINATOR_ADDRESS']}")
exec(sys.argv[2])
"""
FAIL_ONCE = """
if again == 0:
    while number == "1" and not (place / "0-0").exists():  # else 0 would take its second start for its first
        time.sleep(0.02)
    sys.exit("no data") if number == "1" else time.sleep(600)
"""
HEAR_CTRL_C = """
import signal
signal.signal(signal.SIGINT, lambda *_: os._exit(130))
(place / f"{number}-hears").touch()
time.sleep(600)
"""


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def machines(tmp_path, port):
    """Start launchers at one address, each in a process of its own as on a machine of its own."""
    started = []

    def start(deed, *options, number=2):
        program = [sys.executable, "-c", PROGRAM, str(tmp_path), deed]
        command = ["-m", "meshwright", "launch", "hosts", "--at", f"127.0.0.1:{port}", "--hosts", "2"]
        for _ in range(number):
            words = [sys.executable, *command, "-n", "1", "--grace", "1", *options, "--", *program]
            started.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-number:]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def leader_and_other(machines, deed, place, *options):
    """Start two launchers, the one that leads first, and wait until the processes of both run."""
    (leader,) = machines(deed, *options, number=1)
    assert "this machine leads" in leader.stderr.readline()
    (other,) = machines(deed, *options, number=1)
    for number in range(2):
        eventually((place / f"{number}-0").exists)
    return leader, other


def said(processes):
    return [process.communicate(timeout=400)[1] for process in processes]


def test_all_start_again_when_one_fails_and_the_leader_says_which(machines, tmp_path):
    both = machines(FAIL_ONCE)
    told = "".join(said(both))
    assert [process.returncode for process in both] == [0, 0]
    assert "process 1 of 2 failed first, with exit code 1" in told
    assert "    no data\n  process 0: killed by the launcher" in told
    assert "starting 2 processes on" in told
    assert "; restart 1 of 3" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "0-1", "1-0", "1-1"]
    assert (tmp_path / "0-1").read_text() == (tmp_path / "1-1").read_text()
    assert (tmp_path / "0-0").read_text() != (tmp_path / "0-1").read_text()


def test_what_would_fail_again_ends_all_with_its_code_and_reason(machines):
    both = machines("sys.exit(3) if number == '1' else time.sleep(600)")
    for told in said(both):
        assert "process 1 of 2 failed first, with exit code 3" in told
    assert [process.returncode for process in both] == [3, 3]


@pytest.mark.slow
def test_ctrl_c_on_one_machine_ends_all(machines, tmp_path):
    both = machines(HEAR_CTRL_C)
    for number in range(2):
        eventually((tmp_path / f"{number}-hears").exists)
    both[1].send_signal(signal.SIGINT)
    said(both)
    assert [process.returncode for process in both] == [130, 130]


def test_another_program_at_the_same_address_is_refused(machines):
    (first,) = machines("time.sleep(600)", number=1)
    assert "this machine leads" in first.stderr.readline()
    (told,) = said(machines("pass", number=1))
    assert "was given another program or other options" in told


def test_a_leader_to_whom_nobody_comes_ends_after_its_wait(machines):
    (alone,) = machines("pass", "--wait", "3", number=1)  # a busy machine hears nothing for a second
    (told,) = said([alone])
    assert "1 of 2 machines came within 3 s" in told
    assert alone.returncode == 6


def test_a_stranger_who_sends_something_else_disturbs_nothing(machines, port):
    first = machines("pass", number=1)
    assert "this machine leads" in first[0].stderr.readline()
    for line in (b"GET / HTTP/1.0\r\n\r\n", b'{"agent": 1}\n', b"[" * 100_000 + b"\n", b"x" * (2 << 20)):
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), 60) as peer:
            peer.sendall(line)
    both = [*first, *machines("pass", number=1)]
    said(both)
    assert [process.returncode for process in both] == [0, 0]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"address": "node1"}, "expected HOST:PORT"),
        ({"address": "no-such-host.invalid:1"}, "is not known here"),
        ({"hosts": 0}, "--hosts is 0"),
        ({"min_hosts": 3}, "--min-hosts is 3"),
        ({"wait_seconds": 0}, "--wait is 0"),
    ],
)
def test_what_cannot_work_is_refused(options, complaint):
    with pytest.raises(UsageError, match=complaint):
        launch_hosts([sys.executable], 1, **({"address": "127.0.0.1:29400", "hosts": 2} | options))


@pytest.mark.slow
def test_a_machine_that_is_lost_comes_back_and_all_start_again(machines, tmp_path):
    deed = "time.sleep(600 if again == 0 else 0)"
    kept, lost = leader_and_other(machines, deed, tmp_path)
    lost.kill()
    replacement = machines(deed, number=1)
    (told,) = said([kept])
    said(replacement)
    assert "the launcher on" in told
    assert "is gone, or cannot be reached" in told
    assert (kept.returncode, replacement[0].returncode) == (0, 0)
    assert (tmp_path / "1-1").exists()


@pytest.mark.slow
def test_the_others_go_on_without_a_machine_that_stays_away(machines, tmp_path):
    deed = "time.sleep(600 if again == 0 else 0)"
    kept, lost = leader_and_other(machines, deed, tmp_path, "--min-hosts", "1")
    lost.kill()
    (told,) = said([kept])
    assert kept.returncode == 0, told
    assert (tmp_path / "0-1").read_text().startswith("1 ")


@pytest.mark.slow
def test_without_a_leader_the_processes_end_and_the_launcher_after_its_wait(machines, tmp_path):
    leader, other = leader_and_other(machines, "time.sleep(600)", tmp_path, "--wait", "15")
    leader.kill()
    (told,) = said([other])
    assert other.returncode == 6
    assert "heard nothing of a launcher at 127.0.0.1" in told
