"""A program that is killed while it saves over a checkpoint of the same name, as a process of its own."""

import signal
import subprocess

import numpy as np
import optax

PROGRAM = """
import os, signal, sys
from pathlib import Path
import numpy as np, optax
import meshwright as mw

def kill_when_all_is_written(path, target, rename=Path.rename):
    if Path(target).name == "step_00000001":
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)

Path.rename = kill_when_all_is_written
deployer = mw.Deployer(seed=0, workdir=sys.argv[1], verbose=False)
params = {"w": np.ones(8, np.float32)}
for step in (1, 2):
    deployer.save_ckpt("last", params, optax.adam(1e-3).init(params), step=step)
"""


def test_a_kill_while_saving_leaves_what_the_name_held_and_the_next_save_clears_up(
    python, make_deployer, tmp_path
):
    run = subprocess.run([*python, "-c", PROGRAM, str(tmp_path)], check=False)
    assert run.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "ckpts/last").glob("step_*"))) == 2
    deployer = make_deployer(workdir=tmp_path)
    ckpt, info = deployer.load_last_ckpt(optimizer=optax.adam(1e-3))
    assert info["step"] == 1
    assert np.array_equal(ckpt["params"]["w"], np.ones(8))
    assert ckpt["opt_state"] is not None
    deployer.save_ckpt("last", ckpt["params"], step=2)
    assert [path.name for path in (tmp_path / "ckpts/last").glob("step_*")] == ["step_00000001"]
