"""What the command line answers, above all to mistakes: one message, one exit code, nothing begun."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.cli import main


def init(key):
    return {"w": jax.random.normal(key, (4, 2))}


def loss(params, batch, key):
    return ((batch["x"] @ params["w"]) ** 2).mean()


def tiny(
    run: str,
    batch_size: int = 8,
    steps: int = 4,
    mesh: str = "data=-1",
    ragged: bool = False,
    unreduced: bool = False,
    rule: str = "fsdp",
    diverging: bool = False,
) -> mw.Experiment:
    examples = [{"x": np.ones(4 if i or not ragged else 3, np.float32)} for i in range(16)]
    return mw.Experiment(
        run=run,
        model=init,
        loss=(lambda p, b, k: (b["x"] @ p["w"]).sum(-1)) if unreduced else loss,
        optimizer=optax.sgd(0.1),
        input=mw.Input(examples, batch_size=batch_size),
        max_step=steps,
        mesh=mesh,
        rules=(mw.match("w", rule),),
    )


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train `tiny` from here, as the command line does; refuse to compile if told so."""
    monkeypatch.setitem(sys.modules, "tiny_module", sys.modules[__name__])

    def run(*settings, target="tiny_module:tiny"):
        return main(["train", target, f"run={tmp_path}/run", *settings])

    return run


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        (["lerning_rate=1"], 2, "unknown setting 'lerning_rate'"),
        (["stps=3"], 2, "Did you mean 'steps'?"),
        (["steps=many"], 2, "steps=many: expected int, found 'many'"),
        (["max_step=0"], 2, "Experiment.max_step is 0; it must be at least 1"),
        (["mesh=data=3"], 2, "mesh data=3 needs 3 devices, this run has 8"),
        (["batch_size=6"], 2, "a batch of 6 examples does not divide by 8"),
        (["microbatches=3"], 2, "microbatches=3 does not divide input.batch_size=8"),
        (["microbatches=2"], 2, "multiple of 16"),
        (["rule=tesnor"], 2, "the mesh has no axis 'tesnor'"),
        (["mesh=fsdp=8"], 2, "dimension 0 has size 4, which mesh axis 'fsdp' of size 8 does not divide"),
        (["unreduced=true"], 2, r"loss must be a scalar or a Mean of scalars; it has shape (8,)"),
        (["ragged=true", "seed=1"], 3, "differ: x has shape"),
        (["run=/proc/nowhere"], 2, "the run directory /proc/nowhere cannot be written to"),
    ],
)
def test_a_mistake_is_told_in_one_message_before_anything_compiles(
    train, capsys, monkeypatch, settings, code, says
):
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_, **__: pytest.fail("compiled"))
    assert train(*settings) == code
    err = capsys.readouterr().err
    assert err.count("error: ") == 1
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nowhere.module:experiment", "there is no module 'nowhere.module'"),
        ("tiny_module:tinny", "module tiny_module has no function 'tinny'. Did you mean 'tiny'?"),
        ("tiny_module", "write module:function"),
        ("tiny_module:init", "needs a value for 'key'"),
    ],
)
def test_a_target_that_is_not_there_is_told(train, capsys, target, says):
    assert train(target=target) == 2
    assert says in capsys.readouterr().err


def test_a_run_ends_with_its_result_and_can_be_resumed_for_longer(train, tmp_path, capsys):
    assert train() == 0
    assert "done: step 4" in capsys.readouterr().out
    assert main(["resume", f"{tmp_path}/run", "max_step=6"]) == 0
    captured = capsys.readouterr()
    assert "continuing after step 4" in captured.err
    assert "done: step 6" in captured.out


def test_a_damaged_checkpoint_is_told_on_the_screen_and_the_run_goes_on(train, tmp_path, capsys):
    assert train("checkpoints.when=2") == 0
    (tmp_path / "run" / "checkpoints" / "step_00000004" / "manifest.json").write_text("{")
    assert train("checkpoints.when=2", "max_step=6") == 0
    err = capsys.readouterr().err
    assert "continuing after step 2" in err
    assert "✗ step 4 is damaged; continuing from step 2 instead." in err


def test_json_is_one_document_on_stdout(train, capsys):
    assert train("--json") == 0
    assert json.loads(capsys.readouterr().out).keys() == {"run", "step", "scores", "seconds"}
    assert train("stps=1", "--json") == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def test_resume_needs_a_run(tmp_path, capsys):
    assert main(["resume", str(tmp_path)]) == 3
    assert "is no run that can be resumed" in capsys.readouterr().err


def test_inspect_shows_a_run_from_its_files(train, tmp_path, capsys):
    train()
    capsys.readouterr()
    assert main(["inspect", f"{tmp_path}/run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 4
    assert found["arrays"]["params/w"] == {"shape": [4, 2], "dtype": "float32", "bytes": 32}
    assert found["reported"]["loss"] > 0
    assert main(["inspect", f"{tmp_path}/run"]) == 0
    assert "params/w" in capsys.readouterr().out


def test_inspect_says_what_is_not_there(tmp_path, capsys):
    assert main(["inspect", f"{tmp_path}/none"]) == 3
    assert "does not exist" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path)]) == 3
    assert "is no checkpoint" in capsys.readouterr().err


def test_doctor_reports_what_decides_whether_a_run_works(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["jax"] == jax.__version__
    assert found["devices"] == "8 × cpu"
    assert found["compile"].startswith("ok")
    assert found["write"].startswith("ok")


def test_settings_are_refused_where_there_are_none_to_set(capsys):
    assert main(["doctor", "max_step=3"]) == 2
    assert "takes no settings" in capsys.readouterr().err


def test_help_and_usage_errors_do_not_load_jax():
    script = (
        "import sys\n"
        "from meshwright.cli import main\n"
        "for words in (['--help'], ['train', '--help'], ['nonsense'], ['demo', 'x'], ['doctor', 'a=1']):\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit:\n"
        "        pass\n"
        "assert 'jax' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "invalid choice: 'nonsense'" in done.stderr
