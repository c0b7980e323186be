"""The first program that `meshwright init` writes, and completion in shells."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from meshwright.cli import main
from meshwright.cli._commands import grammar
from report.runs import write_run

KINDS = ["nnx", "linen", "equinox", "plain"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    return tmp_path


@pytest.mark.parametrize(
    "kind", ["plain", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "plain")]
)
def test_the_first_program_is_short_and_learns_what_it_makes_up(here, capsys, kind):
    assert main(["init", kind, f"first_{kind}.py"]) == 0
    assert f"train first_{kind}.py:experiment" in capsys.readouterr().out
    assert len((here / f"first_{kind}.py").read_text().splitlines()) <= 62
    assert main(["train", f"first_{kind}.py:experiment", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"]["test/loss"] < 0.2


def test_a_file_without_a_kind_is_answered_by_the_order_of_the_two(here, capsys):
    assert main(["init", "mine.py"]) == 2
    assert "the kind comes first: meshwright init plain mine.py" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "npz"])
@pytest.mark.daily(1)
def test_it_runs_on_a_file_of_one_s_own(here, ending, python):
    x = np.random.default_rng(0).normal(size=(320, 3))
    y = x @ [1, 2, 3]
    np.savez("mine.npz", x=x, y=y)
    np.savetxt("mine.csv", np.column_stack([x, y]), delimiter=",", header="a,b,c,y", comments="")
    assert main(["init", "plain", "train.py"]) == 0
    subprocess.run([*python, "train.py", f"mine.{ending}", "runs/mine"], check=True)
    last = json.loads((here / "runs/mine/metrics.jsonl").read_text().splitlines()[-1])
    assert last["test/loss"] < 0.1


def test_a_file_without_rows_of_numbers_is_told_before_anything_is_trained(here, capsys):
    (here / "mine.csv").write_text("a,y\nnone,2\n")
    assert main(["init", "plain", "rows.py"]) == 0
    assert main(["train", "rows.py:experiment", "file=mine.csv"]) == 3
    assert "mine.csv has 0 complete rows of numbers; give 5 or more" in capsys.readouterr().err
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("mine.py", "mine.py is there already and stays as it is"),
        ("my-file.py", "cannot be imported as a Python program"),
        ("train.txt", "cannot be imported as a Python program"),
        ("jax.py", "would be imported in place of the package of that name"),
        ("nowhere/train.py", "cannot be written: No such file or directory"),
    ],
)
def test_nothing_is_overwritten_and_names_that_cannot_be_are_refused(here, capsys, file, says):
    (here / "mine.py").write_text("mine")
    assert main(["init", "nnx", file]) == 2
    assert says in capsys.readouterr().err
    assert (here / "mine.py").read_text() == "mine"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_options_choices_and_runs(here, capsys, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    write_run(here / "runs/a")
    assert main(["completion", shell]) == 0
    load = "source ./completion.sh"
    if shell == "zsh":  # which calls functions for Bash as in this mode
        load = f"autoload -Uz compinit && compinit -D -u; {load}; emulate sh"
    (here / "completion.sh").write_text(capsys.readouterr().out)

    def completed(*words):
        program = (
            f'{load}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _meshwright; '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        command = [shell, "-c", program, shell, "meshwright", *words]
        words_of_shell = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        # zsh itself leaves out the words that begin otherwise.
        return [word for word in words_of_shell if shell == "bash" or word.startswith(words[-1])]

    assert completed("tra") == ["train", "trace"]
    assert completed("inspect", "--st") == ["--step"]
    assert completed("init", "lin") == ["linen"]
    assert completed("--fake-devices", "8", "resume", "ru") == ["runs/a"]
    assert completed("ev") == ["eval"]
    assert completed("eval", "--be") == ["--best"]
    assert completed("eval", "ru") == ["runs/a"]
    assert completed("doctor", "ru") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_names_every_command_and_option_and_is_one_of_its_shell(here, capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name, parser in grammar().parsers.items():
        assert all(word in script for word in name.split())
        for word in parser.format_usage().replace("[", " ").replace("]", " ").split():
            if word.startswith("--"):
                assert word.removeprefix("--") in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
