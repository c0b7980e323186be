"""The commands on checkpoints in an object store: as functions, and from a shell."""

import json
import os
import subprocess

import numpy as np
import pytest

from meshwright.base._storage import _settings
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.cli import main


@pytest.fixture
def saved(s3_run):
    """Return an address with checkpoints of steps 1 and 2."""
    with Checkpoints(s3_run) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"params": {"w": np.full(8, step, np.float32)}, "same": 0})
    return s3_run


def answer(capsys, *words):
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_inspect_lists_the_steps_and_the_arrays(saved, capsys):
    assert main(["pin", saved, "1"]) == 0
    capsys.readouterr()
    code, found = answer(capsys, "inspect", saved)
    assert (code, found["step"], found["arrays"]["params/w"]["shape"]) == (0, 2, [8])
    assert [(each["step"], each["pinned"]) for each in found["checkpoints"]] == [(1, True), (2, False)]
    assert "checkpoints" not in answer(capsys, "inspect", f"{saved}/step_00000001")[1]


def test_verify_reads_all(saved, capsys):
    code, found = answer(capsys, "verify", saved)
    assert (code, [each["checkpoint"] for each in found["checkpoints"]]) == (
        0,
        [f"{saved}/step_00000001", f"{saved}/step_00000002"],
    )


def test_diff_compares_a_store_with_a_directory(saved, tmp_path, capsys):
    assert main(["convert", f"{saved}/step_00000001", str(tmp_path)]) == 0
    capsys.readouterr()
    assert answer(capsys, "diff", tmp_path, f"{saved}/step_00000001")[0] == 0
    code, found = answer(capsys, "diff", tmp_path, saved)
    assert (code, found["different"]["params/w"]["largest"]) == (1, 1.0)


def test_convert_writes_into_a_store(saved, capsys):
    code, found = answer(capsys, "convert", saved, f"{saved}-half", "--dtype", "bfloat16")
    assert (code, found["checkpoint"]) == (0, f"{saved}-half/step_00000002")
    assert open_source(f"{saved}-half").arrays()["params/w"].dtype.name == "bfloat16"
    assert answer(capsys, "verify", f"{saved}-half")[0] == 0
    assert main(["convert", saved, f"{saved}-half"]) == 2
    assert "step_00000002 exists already" in capsys.readouterr().err


def test_convert_reads_from_a_store(saved, tmp_path, capsys):
    assert main(["convert", saved, str(tmp_path), "--to", "safetensors"]) == 0
    assert (tmp_path / "model.safetensors").exists()


def test_what_is_not_there_exits_with_3(s3_run, capsys):
    assert main(["inspect", s3_run]) == 3
    assert f"{s3_run} does not exist" in capsys.readouterr().err


@pytest.fixture
def shell(python):
    """Return a function that calls a command, with the store in its environment."""
    command = [*python, "-m", "meshwright"]
    return lambda *words, **environ: subprocess.run(
        [*command, *words],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def test_a_shell_finds_the_store_by_its_environment(shell, saved, s3):
    done = shell("verify", saved, AWS_ENDPOINT_URL=s3)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 intact, 0 damaged"), done.stderr


def test_a_command_outlasts_a_connection_that_hangs(saved, s3_faults, monkeypatch, capsys):
    hung = []

    def hang_once(request):
        if request.method == "GET" and "/data-" in request.path and not hung:
            return hung.append(request) or "hang"
        return None

    monkeypatch.setitem(_settings.PATIENCE, "stalled", 0.5)
    s3_faults.fault = hang_once
    assert main(["verify", saved]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 intact, 0 damaged"
    assert hung


def test_a_shell_is_told_what_is_wrong_and_no_secret(shell, saved, s3):
    done = shell("verify", saved.replace("bucket", "bukcet"), AWS_ENDPOINT_URL=s3)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot list s3://bukcet/" in done.stderr
    assert "very secret" not in done.stderr
    assert "testing" not in done.stderr
