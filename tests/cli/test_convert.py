"""`meshwright convert`, `inspect` and `diff` where something is not as it should be, as a shell sees it."""

import errno
import io
import itertools
import json
import os
import subprocess

import jax
import numpy as np
import pytest

from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._export_safetensors import export_safetensors
from meshwright.checkpoints._formats._open import open_source
from meshwright.cli import main

STATE = {"params": {"a": {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}}, "step": np.int32(7)}


@pytest.fixture
def saved(tmp_path):
    """Return a directory with a checkpoint that has a PRNG key besides."""
    with Checkpoints(tmp_path / "saved") as checkpoints:
        checkpoints.save(7, {**STATE, "rng": jax.random.key(0)})
    return tmp_path / "saved"


@pytest.fixture
def foreign(tmp_path):
    """Return a directory with safetensors, whose names have dots."""
    export_safetensors(STATE, tmp_path / "foreign")
    return tmp_path / "foreign"


def refused(capsys, *words):
    code = main([*map(str, words)])
    return code, capsys.readouterr().err


def names(place):
    return set(open_source(place).arrays())


@pytest.fixture
def averaged(tmp_path):
    """Return a directory with a checkpoint whose optimizer keeps averages."""
    averages = {"ema": {"w": np.full(3, 0.5, np.float32)}, "mass": np.float32(1), "count": np.int32(2)}
    state = {"params": {"w": np.ones(3, np.float32)}, "opt_state": {"1": averages}, "step": np.int32(7)}
    with Checkpoints(tmp_path / "averaged") as checkpoints:
        checkpoints.save(7, state, {"scores": {"test/loss": 0.1}})
    return tmp_path / "averaged"


@pytest.mark.parametrize("to", ["native", "safetensors"])
def test_averages_are_written_in_the_place_of_the_parameters(averaged, tmp_path, to):
    words = ("--best", "test/loss", "--averages", "--to", to, "--subtree", "params")
    assert main(["convert", f"{averaged}", f"{tmp_path}/out", *words]) == 0
    assert np.asarray(open_source(tmp_path / "out").arrays()["w"]).tolist() == [0.5] * 3


def test_the_best_by_scores_of_averages_says_where_the_averages_are(averaged, tmp_path, capsys):
    assert main(["convert", f"{averaged}", f"{tmp_path}/out", "--best", "test/loss"]) == 0
    assert "--averages writes them in the place of the parameters" in capsys.readouterr().out
    assert np.asarray(open_source(tmp_path / "out").arrays()["params/w"]).tolist() == [1.0] * 3


def test_averages_that_were_not_kept_are_an_error(saved, tmp_path, capsys):
    code, told = refused(capsys, "convert", saved, tmp_path / "out", "--averages")
    assert (code, "has no averages of its parameters" in told) == (3, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (
            ("--only", ""),
            "only: '' matches no name; there are params/a/w, rng, step",
        ),
        (("--only", "("), "'(' is not a regular expression"),
        (("--subtree", ""), "has no arrays below"),
        (("--subtree", "param"), "Did you mean 'params'?"),
        (("--dtype", ""), "there is no dtype ''"),
        (("--dtype", "float4_e2m1fn"), "it has no NaN, so values that do not fit"),
    ],
)
def test_a_choice_that_chooses_nothing_is_refused_and_writes_nothing(saved, tmp_path, capsys, choice, said):
    code, told = refused(capsys, "convert", saved, tmp_path / "out", *choice)
    assert code in (2, 3)
    assert said in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["native", "npz", "t5x", "seqax"])
def test_names_with_dots_become_ours_whatever_is_written(foreign, tmp_path, to):
    out = tmp_path / ("out.npz" if to == "npz" else "out")
    assert main(["convert", str(foreign), str(out), "--to", to]) == 0
    theirs = {"target/a/w", "state/step"} if to == "t5x" else {"params/a/w", "step"}
    assert names(out) == theirs


@pytest.mark.parametrize(
    ("option", "value", "taken"), [("--only", "params/.*", "params/a/w"), ("--subtree", "params", "a/w")]
)
def test_a_part_is_chosen_by_our_names_whatever_is_read(foreign, tmp_path, option, value, taken):
    assert main(["convert", str(foreign), str(tmp_path / "out"), option, value]) == 0
    assert names(tmp_path / "out") == {taken}


def test_what_t5x_has_no_place_for_is_told(saved, tmp_path, capsys):
    assert main(["convert", str(saved), str(tmp_path / "out"), "--to", "t5x"]) == 0
    assert "left out, because t5x cannot store them: rng" in capsys.readouterr().out
    main(["convert", str(saved), str(tmp_path / "again"), "--to", "t5x", "--json"])
    assert json.loads(capsys.readouterr().out)["left_out"] == ["rng"]


@pytest.mark.parametrize("below", ["", "inside"])
def test_a_checkpoint_is_not_written_into_the_one_that_is_read(saved, capsys, below):
    step = saved / "step_00000007"
    before = sorted(step.iterdir())
    for to in ("native", "safetensors"):
        code, told = refused(capsys, "convert", step, step / below, "--to", to)
        assert (code, f"is inside the checkpoint to convert, {step}" in told) == (2, True)
    assert sorted(step.iterdir()) == before


@pytest.mark.parametrize("words", [("convert", "", "x"), ("inspect", ""), ("diff", "", "x"), ("verify", "")])
def test_an_empty_path_is_not_the_directory_here(saved, capsys, monkeypatch, words):
    monkeypatch.chdir(saved)
    code, told = refused(capsys, *words)
    assert (code, "a path is empty" in told) == (2, True)


@pytest.fixture
def forbid(monkeypatch):
    """Return a function that makes a file unreadable, to root too."""

    def refuse(forbidden):
        def refusing(opened):
            def open_unless(path, *arguments, **more):
                if str(path) == str(forbidden):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
                return opened(path, *arguments, **more)

            return open_unless

        for module in (os, io):
            monkeypatch.setattr(module, "open", refusing(module.open))

    return refuse


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("inspect", "manifest.json"),
        *itertools.product(("verify", "diff", "convert"), ("manifest.json", "data-00000-of-00001.zarr.zip")),
    ],
)
def test_a_file_that_may_not_be_read_is_told_by_name(saved, tmp_path, capsys, forbid, command, name):
    others = {"diff": [saved], "convert": [tmp_path / "out"]}.get(command, [])
    forbid(saved / "step_00000007" / name)
    code, told = refused(capsys, command, saved, *others)
    assert (code, f"{name} cannot be read: Permission denied" in told) == (3, True)


def test_a_foreign_file_that_may_not_be_read_is_told_by_name(foreign, capsys, forbid):
    forbid(foreign / "model.safetensors")
    code, told = refused(capsys, "inspect", foreign)
    assert (code, "model.safetensors cannot be read: Permission denied" in told) == (3, True)


def test_inspect_shows_of_which_kind_keys_are(saved, capsys):
    main(["inspect", str(saved)])
    assert "key<threefry2x32>" in capsys.readouterr().out
    main(["inspect", str(saved), "--json"])
    assert json.loads(capsys.readouterr().out)["arrays"]["rng"]["prng_key"] == "threefry2x32"


def test_a_reader_that_has_seen_enough_changes_no_exit_code(python, saved):
    for command in ("verify", "inspect"):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as closed:
            found = subprocess.run(
                [*python, "-m", "meshwright", command, str(saved)],
                stdout=closed,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert (found.returncode, found.stderr) == (0, "")
