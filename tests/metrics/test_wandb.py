"""The real package, in a process of its own; a run that is offline stays on this machine."""

import subprocess
import sys

import pytest

from meshwright.errors import UsageError
from meshwright.metrics import wandb

PROGRAM = """
import sys, wandb
import meshwright as mw

settings = {"mode": "offline", "dir": sys.argv[1], "project": "digits", "settings": {"console": "off"}}
deployer = mw.Deployer(jax_seed=0, verbose=False, wandb_init_kwargs=settings)
deployer.log_metrics({"loss": 0.5, "accuracy": 0.75}, step=3)
deployer.log_metrics({"loss": 0.25}, step=5)
print(wandb.run.project, wandb.run.step, wandb.run.summary["accuracy"])
"""  # and ends without closing anything


def test_reports_go_to_a_run_of_wandb_which_ends_well_with_the_program(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "digits 5 0.75"), done.stderr
    assert "Traceback" not in done.stderr
    [kept] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert kept.read_bytes().count(b"loss") >= 2


def test_where_it_is_not_installed_that_is_said(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()  # as its runs leave behind
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(UsageError, match=r"not installed.\n  Install it: pip install 'meshwright\[wandb\]'"):
        wandb().__enter__()
