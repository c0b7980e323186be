"""Processes that are killed while they train start again, and nothing is lost."""

import os
import signal
import sys
from pathlib import Path

import pytest

from clusters.engines import Local, reach
from end_to_end.running import Shell, losses, processes_of, reached, wait_for
from eventually import eventually

pytestmark = pytest.mark.slow
SLOWLY = ("-m", "meshwright", "train", "clusters.slowly:experiment", "--fake-devices", "1")


@pytest.fixture
def shell(tmp_path):
    made = Shell([sys.executable], tmp_path)
    tests = str(Path(__file__).parent.parent)
    made.environ["PYTHONPATH"] = os.pathsep.join([tests, made.environ["PYTHONPATH"]])
    return made


@pytest.fixture
def undisturbed(shell):
    done = shell("launch", "local", "-n", "2", "--", sys.executable, *SLOWLY, "workdir=undisturbed")
    assert done.returncode == 0, done.stderr
    return losses(shell.folder / "undisturbed")


def test_a_killed_process_costs_nothing_but_time(shell, undisturbed):
    run = shell.folder / "killed"
    shell.environ["PAUSE"] = "0.0005"
    words = ("launch", "local", "-n", "2", "--restarts", "1", "--", sys.executable, *SLOWLY)
    launcher = shell.start(*words, f"workdir={run}")
    wait_for(reached(run, 40), launcher)
    os.kill(processes_of(launcher)[-1], signal.SIGKILL)
    _, err = launcher.communicate(timeout=400)
    assert launcher.returncode == 0, err
    assert "failed first, with signal SIGKILL" in err
    assert "continuing after step" in err
    assert losses(run) == undisturbed


def test_processes_that_go_on_without_another_do_not_compile_the_step_again(tmp_path):
    own_cache = {"XDG_CACHE_HOME": str(tmp_path)}
    engine = Local(
        tmp_path / "out", tmp_path / "run", own_cache, ["batch_size=12", "max_steps=100000"], pause=0.01
    )
    # In a folder that the environment names, JAX keeps only what took a second; in the user's folder, all.
    del engine.environ["JAX_COMPILATION_CACHE_DIR"]
    engine.options = ("--restarts", "1", "--min-processes", "2", "-n", "3", "--grace", "20")
    engine.start()
    try:
        reach(engine, 1)
        eventually(lambda: "compiled the step ahead for 2 processes" in engine.said(), reason=engine.said)
        engine.kill()
        eventually(lambda: "continuing after step" in engine.said(), reason=engine.said)
        engine.preempt()
        eventually(lambda: engine.ended() is not None, reason=engine.said)
    finally:
        engine.close()
    logs = sorted((engine.run / "logs").glob("*.log"))
    steps = [[line for line in log.read_text().splitlines() if "the step was" in line] for log in logs]
    assert [len(each) for each in steps] == [2, 2, 1]
    assert all(each[0].endswith("compiled") for each in steps)
    assert all(each[1].endswith("read from the compile cache") for each in steps[:2])
    assert "read from the cache; state" in engine.said()
