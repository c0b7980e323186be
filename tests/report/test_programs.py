"""`scripts/programs`, which `make test` calls, on machines that are made up."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/programs"


@pytest.fixture
def machine(tmp_path):
    """Run the script where only the programs given are, and return what it says."""

    def run(*programs, user=1000):
        for name, does in {"id": f"echo {user}", **dict.fromkeys(programs, "echo $0 $* >&2")}.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
            (tmp_path / name).chmod(0o755)
        done = subprocess.run(
            ["/bin/sh", SCRIPT], env={"PATH": str(tmp_path)}, capture_output=True, text=True
        )
        assert done.returncode == 0
        return done.stderr

    return run


def test_where_both_are_nothing_is_said_or_done(machine):
    assert machine("google-chrome", "dot", "curl", user=0) == ""


def test_root_installs_what_is_missing(machine):
    assert machine("dot", "curl", "apt-get", user=0) == "Installing chromium for the tests (once)\n"


@pytest.mark.parametrize("user", [0, 1000])
def test_who_cannot_install_is_told_what_is_missing(machine, user):
    assert machine(user=user) == (
        "Not found and not installed: chromium graphviz curl. Tests that need them will fail.\n"
    )


def test_it_can_be_run(machine):
    assert os.access(SCRIPT, os.X_OK)
