"""What fits nothing is answered with what was probably meant."""

import json
import os

import numpy as np
import pytest

from meshwright.cli import main
from report.runs import write_run

EXAMPLES = {"x": np.ones((16, 4), np.float32)}
GPT = """
import numpy as np, optax
import meshwright as mw

EXAMPLES = {"x": np.ones((16, 4), np.float32)}


def experiment(workdir="runs/gpt"):
    return mw.Experiment(
        workdir=workdir, model=lambda key: {"w": np.ones((4, 2), np.float32)},
        loss=lambda params, batch, key: (batch["x"] @ params["w"]).mean(),
        optimizer=optax.sgd(0.1), input=mw.Input(EXAMPLES, batch_size=8), max_steps=2,
    )
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    (tmp_path / "gpt_here.py").write_text(GPT)
    (tmp_path / "folder_here").mkdir()
    (tmp_path / "folder_here/inner.py").write_text(GPT)
    write_run(tmp_path / "runs/a")
    return tmp_path


def said(capsys, *words):
    code = main([*words])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tarin", "gpt:experiment"], "there is no command 'tarin'. Did you mean 'train'?"),
        (["--fake-devices", "8", "isnpect"], "Did you mean 'inspect'?"),
        (["runs/a"], "It is a run directory. `meshwright inspect runs/a` shows its contents"),
        (["runs"], None),
        (["folder_here"], "It is a directory: `meshwright runs folder_here`"),
        (["gpt_here:experiment"], "`meshwright train gpt_here:experiment`"),
        (["gpt_here.py"], "`meshwright train gpt_here.py:experiment`"),
        (["zzz"], "Commands: init, completion, demo, train"),
        (["doctor", "--jsn"], "meshwright doctor has no option --jsn. Did you mean '--json'?"),
        (["runs", "--stp=3"], "meshwright runs has no option --stp"),
        (["inspect", "runs/a", "--stp", "3"], "Did you mean '--step'?"),
        (["runs", "runs", "more"], "meshwright runs: unexpected argument 'more'"),
        (["train", "gpt_here:experiment", "--fake-device", "8"], "Did you mean '--fake-devices'?"),
        (["plan", "gpt_here:experiment", "--on", "cpu:1", "--serach"], "Did you mean the option --search?"),
        (["train", "runs/a"], "runs/a is a run directory: `meshwright resume runs/a` continues it."),
        (["train", "gpt_here.py"], "Write gpt_here.py:experiment."),
        (["train", "../gpt_here.py:experiment"], "cd .. && meshwright … gpt_here.py:experiment"),
        (["resume", "gpt_here:experiment"], "`meshwright train gpt_here:experiment`"),
        (["train", "gpt_here:experiment", "log_every=1"], "Did you mean 'logging.every'?"),
        (["train", "gpt_here:experiment", "max_seconds=9"], "Did you mean 'stop.max_seconds'?"),
        (["train", "gpt_here:experiment", "batch_size=4"], "Did you mean 'input.batch_size'?"),
        (["train", "gpt_here:experiment", "lr=0.1"], "unknown setting 'lr'. In Python: The optimizer has it"),
        (["train", "gpt_here:experiment", "n_epochs=2"], "Did you mean 'input.epochs'?"),
        (["train", "gpt_here:experiment", "patience=2"], "In Python: Write stop=mw.Stop(early="),
        (
            ["train", "gpt_here:experiment", "input.augment=x"],
            "In Python: The examples have it: mw.data.mapped(",
        ),
        (["explain"], "there is no command 'explain'.\n"),
        (["train", "gpt_here:experiment", "evalers.test.when=4"], "Did you mean 'evaluations'?"),
        (["train", "gpt_here:experiment", "logging=3"], "set one of logging.every, logging.norms, logging."),
        (["train"], "meshwright train: the following arguments are required: module:function"),
        (["launch", "-n", "2", "python"], "usage: meshwright launch"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_with_what_to_write(here, capsys, words, says):
    code, err = said(capsys, *words)
    if says is None:
        assert code == 0
    else:
        assert code in (2, 3)
        assert says in err, err
        assert err.count("error: ") == 1


def test_it_is_told_as_json_too(here, capsys):
    assert main(["tarin", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 2
    assert "Did you mean 'train'?" in found["error"]


@pytest.mark.parametrize(
    "target", ["gpt_here.py:experiment", "./gpt_here.py:experiment", "folder_here/inner.py:experiment"]
)
@pytest.mark.daily(1)
def test_a_function_may_be_named_by_its_file(here, capsys, target):
    assert main(["train", target]) == 0
    module = "folder_here.inner" if "folder" in target else "gpt_here"
    assert json.loads((here / "runs/gpt/experiment.json").read_text())["target"] == f"{module}:experiment"
    assert main(["resume", "runs/gpt", "max_steps=3"]) == 0
    assert main(["resume", "runs/gpt", target, "max_steps=4"]) == 0
    assert main(["show", target, "--against", target]) == 0


def test_a_file_may_be_named_by_its_whole_path(here):
    assert main(["show", f"{here}/gpt_here.py:experiment"]) == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("max_steps: 3\nlogging.every: [1, 2\n", 3),
        ("max_steps: 3\n\tlogging.every: 4\n", 2),
        ("max_steps: 3\nlogging.every: many\n", 2),
        ("max_steps: 3\nlogging.evry: 4\n", 2),
        ("input:\n  batch_size: 8\n  batch_sise: 8\n", 3),
        ("max_steps: 3\nmesh_rules: [[cpu.*, {changes: {mesh: fsdp=8}}, more]]\n", 2),
    ],
)
def test_an_error_in_a_settings_file_names_the_file_and_the_line(here, capsys, text, line):
    (here / "set.yaml").write_text(text)
    code, err = said(capsys, "train", "gpt_here:experiment", "--settings", "set.yaml")
    assert code == 2
    assert f"set.yaml, line {line}" in err, err
    assert "unicode string" not in err


def test_where_a_problem_is_found_doctor_ends_with_1(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert main(["doctor"]) == 1
    assert "problem: RANK or WORLD_SIZE is set" in capsys.readouterr().out


COMMANDS = [
    ("runs",),
    ("runs", "runs/gpt"),
    ("report", "runs/gpt"),
    ("report", "runs/gpt", "runs/other-run-with-a-long-name"),
    ("inspect", "runs/gpt"),
    ("verify", "runs/gpt"),
    ("diff", "runs/gpt", "runs/other-run-with-a-long-name"),
    ("plan", "gpt_here:experiment", "--on", "h100:1x4"),
    ("plan", "gpt_here:experiment", "--on", "cpu:4", "--search"),
    ("hlo", "gpt_here:experiment", "--to", "hlo"),
    ("doctor",),
]


@pytest.mark.slow
def test_what_all_commands_print_fits_eighty_columns(here, capsys, monkeypatch):
    for name in ("gpt", "other-run-with-a-long-name"):
        assert main(["train", "gpt_here:experiment", f"workdir=runs/{name}", "logging.every=1"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "80")
    for words in COMMANDS:
        main([*words])
        lines = capsys.readouterr().out.splitlines()
        # A path is never cut.
        wide = [line for line in lines if len(line) > 80 and max(map(len, line.split())) < 60]
        assert not wide, (words, wide)
        assert lines


def test_in_a_pipe_nothing_is_cut(here, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError()))
    assert main(["train", "gpt_here:experiment", f"workdir=runs/{'long-' * 20}name"]) == 0
    capsys.readouterr()
    main(["runs"])
    assert f"runs/{'long-' * 20}name  finished" in capsys.readouterr().out
