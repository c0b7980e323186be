"""The local launcher, with children that start at once because they know nothing of JAX."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from functools import partial

import pytest

from launched import by_process
from meshwright.errors import UsageError
from meshwright.launch._local import free_port, launch_local

LAUNCHER = """
import sys
from meshwright.cli import main
sys.exit(main(["launch", "local", "-n", "2", "--grace", sys.argv[1], "--", *sys.argv[2:]]))
"""
ANOTHER_THREAD_RECEIVES = """
import signal, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # in the main thread, and all that it starts
"""
FAIL_OR_WAIT = """
import os, sys, time
alive = open(sys.argv[1], "w")
print("I am", os.environ["JAX_PROCESS_ID"], file=alive, flush=True)
if os.environ["JAX_PROCESS_ID"] == "1":
    exec(sys.argv[2])
time.sleep(600)
"""


def python(program, *arguments):
    return [sys.executable, "-c", program, *map(str, arguments)]


@pytest.fixture
def alive(tmp_path):
    """A pipe that the children hold open: it ends when the last of them has."""
    path = tmp_path / "alive"
    os.mkfifo(path)
    return path


@pytest.fixture
def launcher():
    """Start the launcher in a process of its own, to send it signals."""
    started = []

    def start(program, *arguments, grace_seconds=12, before=""):
        command = python(before + LAUNCHER, grace_seconds, *python(program, *arguments))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def reading(alive):
    """Open the pipe before there are any children; then reading waits until all who hold it have ended."""
    with os.fdopen(os.open(alive, os.O_RDONLY | os.O_NONBLOCK)) as pipe:
        os.set_blocking(pipe.fileno(), True)
        yield pipe


def lines(process, number):
    found = []
    while len(found) < number:
        line = process.stdout.readline()
        assert line, f"the launcher has ended with {process.wait()}: {process.stderr.read()}"
        found += by_process(line).splitlines(keepends=True)
    return sorted(found)


def said(text):
    return sorted(by_process(text).splitlines())


def test_each_line_says_which_process_wrote_it(capfd):
    program = "import sys; print('out'); print('err', file=sys.stderr)"
    assert launch_local(python(program), 2) == 0
    out, err = capfd.readouterr()
    assert said(out) == ["[0] out", "[1] out"]
    assert said(err) == ["[0] err", "[1] err", "meshwright launch: starting 2 processes"]


def test_the_processes_are_told_how_to_find_each_other(capfd):
    names = "'JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID', 'JAX_LOCAL_DEVICE_IDS'"
    launch_local(python(f"import os; print(*[os.environ[n] for n in ({names})])"), 2, devices_per_process=2)
    found = [line.split() for line in said(capfd.readouterr().out)]
    assert [words[2:] for words in found] == [["2", "0", "0,1"], ["2", "1", "2,3"]]
    assert found[0][1] == found[1][1]
    assert found[0][1].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("deed", "exit_code", "how"),
    [("sys.exit('no data')", 1, "exit code 1"), ("os.kill(os.getpid(), 9)", 137, "signal SIGKILL")],
)
def test_when_one_fails_all_end_with_its_code(alive, capfd, deed, exit_code, how):
    with reading(alive) as pipe:
        assert launch_local(python(FAIL_OR_WAIT, alive, deed), 2, grace_seconds=0.2) == exit_code
        pipe.read()
    report = capfd.readouterr().err
    where = socket.gethostname()
    assert f"process 1 of 2 failed first, with {how}. It ran on {where}. Its last lines:" in report
    assert "process 0: killed by the launcher" in report


def test_the_last_lines_of_the_one_that_failed_are_shown(capfd):
    program = "import os, sys; sys.exit('no data' if os.environ['JAX_PROCESS_ID'] == '1' else 0)"
    assert launch_local(python(program), 2) == 1
    assert capfd.readouterr().err.endswith("Its last lines:\n    no data\n  process 0: exit code 0\n")


LATE = """
import os, sys, time
last_words = {"gloo": "ValueError: UNKNOWN: Gloo all-reduce failed: pair.cc:547] Connection closed by peer",
              "jax": "Terminating process because the JAX distributed service detected fatal errors."}
mine = sys.argv[1 + int(os.environ["JAX_PROCESS_ID"])]
if mine == "cause":
    time.sleep(0.5)
    sys.exit("OSError: no data")
print(last_words.get(mine, "process 1 is gone"), file=sys.stderr, flush=True)
if mine == "jax":
    os.abort()
os._exit({"gloo": 1, "jax": 1}.get(mine, 6))
"""


@pytest.mark.parametrize("survivor", ["peers error", "gloo", "jax"])
def test_the_one_that_failed_for_a_cause_of_its_own_is_named_though_survivors_overtake_it(capfd, survivor):
    assert launch_local(python(LATE, survivor, "cause"), 2) == 1
    report = capfd.readouterr().err.partition("meshwright launch: process 1 of 2 ")[2]
    assert report.startswith("failed first, with exit code 1. It ran on ")
    assert "Its last lines:\n    OSError: no data\n  process 0: " in report


def test_where_all_tell_of_another_the_first_of_them_is_named(capfd):
    assert launch_local(python(LATE, "peers error", "peers error"), 2) == 6
    assert "failed first, with exit code 6" in capfd.readouterr().err


def test_one_that_leaves_with_0_half_way_is_named_as_what_the_others_ended_of(capfd):
    program = """
import os, sys, time
if os.environ["JAX_PROCESS_ID"] == "0":
    time.sleep(0.5)
    sys.exit(6)
"""
    assert launch_local(python(program), 2) == 6
    report = capfd.readouterr().err
    assert "process 1 of 2 left with exit code 0 while the others were not done." in report
    assert "process 0: exit code 6 (another process was gone)" in report


@pytest.mark.parametrize("exit_code", [0, 75, 130])
def test_after_an_orderly_end_the_others_may_still_save(tmp_path, exit_code):
    program = """
import os, pathlib, sys, time
if os.environ["JAX_PROCESS_ID"] == "0":
    time.sleep(0.3)
    pathlib.Path(sys.argv[1]).write_text("saved")
sys.exit(int(sys.argv[2]))
"""
    saved = tmp_path / "saved"
    assert launch_local(python(program, saved, exit_code), 2, grace_seconds=0) == exit_code
    assert saved.read_text() == "saved"


def test_sigterm_is_passed_on_and_the_children_decide(launcher):
    process = launcher("""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("ready")
while True:
    time.sleep(0.05)
""")
    assert lines(process, 2) == ["[0] ready\n", "[1] ready\n"]
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 75


# A signal that arrives just before `signal.pause()` would not end it, so these programs wait in short sleeps.
DEAF = """
import signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: print("heard"))
print("ready")
while True:
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_sigterm_ends_what_waits_for_ever_after_a_time_of_grace(launcher):
    process = launcher(DEAF, grace_seconds=2)
    lines(process, 2)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=400)
    assert sum(line.endswith("heard") for line in said(out)) == 2
    assert "killed process 0-1, still running --grace seconds after SIGTERM" in err
    assert process.returncode == 128 + signal.SIGTERM


STOPPED = """
import os, signal, sys, time
def stop(number, frame):
    print(sys.argv[2], flush=True)
    if os.environ["JAX_PROCESS_ID"] == "1" and sys.argv[1] != "waits":
        os._exit(int(sys.argv[1]))
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, stop)
print("ready")
while True:
    time.sleep(0.05)
"""


def test_who_has_said_that_all_is_saved_and_does_not_end_has_stopped(launcher):
    process = launcher(
        STOPPED,
        "waits",
        "stopped by SIGTERM after step 13. Run the same command again to continue.",
        grace_seconds=0.3,
    )
    lines(process, 2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=400)
    assert process.returncode == 75
    assert "Raise --grace" not in err


def test_after_ctrl_c_one_that_ends_gives_the_others_a_time_of_grace(launcher):
    process = launcher(STOPPED, 130, "stopping", grace_seconds=0.3)
    lines(process, 2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=400)
    assert process.returncode == 130
    assert "killed process 0, still running --grace seconds after SIGINT" in err


ASKED = """
import os, signal, sys, time
if os.environ["JAX_PROCESS_ID"] == "1":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(int(sys.argv[1])))
print("ready")
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("ends", "code"), [(0, 75), (6, 75), (75, 75), (3, 3)])
def test_who_was_asked_to_stop_and_ends_by_sigterm_or_without_another_has_not_failed(launcher, ends, code):
    process = launcher(ASKED, ends)
    lines(process, 2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=400)
    assert process.returncode == code
    assert ("process 1 of 2 failed first, with exit code 3" in err) == (ends == 3)


def test_unless_it_is_said_that_time_is_less_than_15_seconds():
    assert launch_local.__kwdefaults__["grace_seconds"] + 2 < 15


def test_a_signal_is_passed_on_also_if_it_does_not_wake_the_launcher(launcher):
    hears = "import signal; signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])" + DEAF
    process = launcher(hears, grace_seconds=0, before=ANOTHER_THREAD_RECEIVES)
    lines(process, 2)
    process.send_signal(signal.SIGINT)
    assert lines(process, 2) == ["[0] heard\n", "[1] heard\n"]


def test_children_hear_of_ctrl_c_though_what_started_them_blocks_it(capfd):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        program = "import signal; print('blocked:', [*signal.pthread_sigmask(signal.SIG_BLOCK, [])])"
        assert launch_local(python(program), 1) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert "blocked: []" in capfd.readouterr().out


def test_who_is_patient_after_ctrl_c_may_be(launcher):
    process = launcher(DEAF, grace_seconds=0)
    lines(process, 2)
    process.send_signal(signal.SIGINT)
    assert lines(process, 2) == ["[0] heard\n", "[1] heard\n"]
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)


def test_the_second_ctrl_c_kills(launcher):
    process = launcher("""
import signal, time
signal.signal(signal.SIGINT, lambda *_: print("saving"))
print("ready")
while True:
    time.sleep(0.05)
""")
    lines(process, 2)
    process.send_signal(signal.SIGINT)
    assert lines(process, 2) == ["[0] saving\n", "[1] saving\n"]
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130


def test_a_killed_launcher_leaves_nobody_behind(launcher, alive):
    process = launcher(FAIL_OR_WAIT, alive, "pass")
    with alive.open() as pipe:
        assert sorted(pipe.readline() for _ in range(2)) == ["I am 0\n", "I am 1\n"]
        process.kill()
        assert pipe.read() == ""


def test_what_a_child_started_ends_with_it(alive):
    program = """
import subprocess, sys
with open(sys.argv[1], "w") as alive:
    subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, pass_fds=[alive.fileno()])
"""
    with reading(alive) as pipe:
        assert launch_local(python(program, alive), 1) == 0
        pipe.read()


@pytest.mark.parametrize(
    ("command", "number", "complaint"),
    [
        (["no-such-command"], 2, "no-such-command"),
        ([], 2, "no program to start"),
        (["true"], 0, "at least 1"),
    ],
)
def test_what_cannot_be_run_is_refused(command, number, complaint):
    with pytest.raises(UsageError, match=complaint):
        launch_local(command, number)


LIMITED = """
import resource, sys
from meshwright.launch._local import launch_local
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:])))
show = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
launch_local([sys.executable, "-c", show], 12)
"""


def test_processes_may_open_as_many_files_as_they_need_or_the_launch_is_refused():
    run = partial(subprocess.run, capture_output=True, text=True)
    done = run(python(LIMITED, 64, 1024))
    assert by_process(done.stdout).splitlines()[:1] == ["[0] 112"], done.stderr
    refused = run(python(LIMITED, 40, 40)).stderr
    assert "process 0 of 12 opens some 56 files, and may open 40: ulimit -n 112" in refused


def test_the_launcher_does_not_wait_for_jax():
    program = "import meshwright.launch, sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run(python(program)).returncode == 0


def test_the_port_of_a_launch_is_none_that_an_outgoing_connection_may_take_before_process_0_listens():
    found = {free_port() for _ in range(50)}
    assert len(found) > 40
    assert 20_000 <= min(found) <= max(found) < 32_768
    with socket.create_server(("127.0.0.1", min(found))):
        pass
