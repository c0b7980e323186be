"""Signals that come to a command before its run has begun, or after it has ended."""

import os
import signal
import subprocess
import sys

import pytest

EXPERIMENT = """
import jax.numpy as jnp, numpy as np, optax, meshwright as mw

def experiment(workdir: str) -> mw.Experiment:
    loss = lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean()
    data = mw.Input({"x": np.ones((16, 4), np.float32)}, batch_size=8)
    init = lambda key: {"w": jnp.ones(4)}
    return mw.Experiment(workdir, init, loss, optax.sgd(0.1), data, max_steps=2)
"""
COMMAND = """
import os, signal, sys
from meshwright.cli import main
sys.argv = ["meshwright", "train", "small:experiment", "workdir=run"]
"""
WHILE_COLLECTING = """
import gc
# An error in a callback is only printed; JAX has one.
send = lambda *_: "jax" in sys.modules and os.kill(os.getpid(), {number})
gc.callbacks.append(send)
gc.set_threshold(50)
sys.exit(main())
"""
AT_THE_END = """
import atexit
atexit.register(os.kill, os.getpid(), {number})
sys.exit(main())
"""


def play(python, folder, program, number):
    (folder / "small.py").write_text(EXPERIMENT)
    words = [*python, "-c", COMMAND + program.format(number=int(number))]
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    return subprocess.run(words, cwd=folder, env={**os.environ, **paths}, capture_output=True, text=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_while_jax_is_imported_ends_the_process_at_once(tmp_path, number, code):
    done = play([sys.executable], tmp_path, WHILE_COLLECTING, number)
    assert (done.returncode, done.stderr) == (code, "stopped at once; what was saved before stays saved\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_a_run_changes_nothing_of_how_it_ended(python, tmp_path, number):
    done = play(python, tmp_path, AT_THE_END, number)
    assert done.returncode == 0, done.stderr
    assert "done: step 2" in done.stdout


def test_a_second_ctrl_c_after_a_run_ends_the_process(python, tmp_path):
    twice = AT_THE_END.replace("sys.exit", "atexit.register(os.kill, os.getpid(), 2)\nsys.exit")
    done = play(python, tmp_path, twice, signal.SIGINT)
    assert done.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
