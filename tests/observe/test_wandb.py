"""The real package, in a process of its own; a run that is offline stays on this machine."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, numpy as np, wandb
import meshwright as mw

settings = {"mode": "offline", "dir": sys.argv[1], "project": "digits", "settings": {"console": "off"}}
deployer = mw.Deployer(seed=0, verbose=False, wandb_init_kwargs=settings)
others = {"seen": mw.observe.Histogram.of(np.ones(3)), "picture": mw.observe.Image.of(np.zeros((4, 6)))}
deployer.log_metrics({"loss": 0.5, "accuracy": 0.75, "note": "so far", **others}, step=3)
deployer.log_metrics({"loss": 0.25}, step=5)
summary = wandb.run.summary
print(wandb.run.project, wandb.run.step, summary["accuracy"])
print(summary["seen"]["_type"], summary["seen"]["values"], summary["picture"]["width"], summary["note"])
"""  # and ends without closing anything


@pytest.mark.slow
def test_reports_go_to_a_run_of_wandb_which_ends_well_with_the_program(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True)
    told = ["digits 5 0.75", "histogram [3] 6 so far"]
    assert (done.returncode, done.stdout.splitlines()[:2]) == (0, told), done.stderr
    assert "Traceback" not in done.stderr
    [kept] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert kept.read_bytes().count(b"loss") >= 2
