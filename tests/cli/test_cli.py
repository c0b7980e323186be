"""What the command line answers, above all to mistakes: one message, one exit code, nothing begun."""

import json
import os
import re
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
import safetensors

import meshwright as mw
from meshwright.cli import main

EXAMPLES = {"x": np.ones((16, 4), np.float32)}


def init(key, width):
    return {"w": jax.random.normal(key, (4, width))}


def loss(params, batch, key):
    return ((batch["x"] @ params["w"]) ** 2).mean()


def measure(params, batch):
    return {"loss": ((batch["x"] @ params["w"]) ** 2).mean(-1)}


def unreduced_loss(params, batch, key):
    return (batch["x"] @ params["w"]).sum(-1)


def nan_loss(params, batch, key):
    return loss(params, batch, key) * np.nan


def tiny(
    workdir: str,
    batch_size: int = 8,
    steps: int = 4,
    mesh: str = "data=-1",
    ragged: bool = False,
    unreduced: bool = False,
    rule: str = "fsdp",
    diverging: bool = False,
    width: int = 2,
    evaluated: bool = False,
    early: str | None = None,
) -> mw.Experiment:
    examples = [{"x": np.ones(4 if i or not ragged else 3, np.float32)} for i in range(16)]
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: init(key, width),
        loss=unreduced_loss if unreduced else nan_loss if diverging else loss,
        optimizer=optax.sgd(0.1),
        input=mw.Input(examples, batch_size=batch_size),
        max_steps=steps,
        mesh=mesh,
        rules=(mw.parallel.match("w", rule),),
        evaluations={"test": mw.Evaluation(measure, EXAMPLES, batch_size=8)} if evaluated else {},
        stop=mw.Stop(early=mw.engine.early_stopping(early, "min", patience=3) if early else None),
    )


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train `tiny` from here, as the command line does; refuse to compile if told so."""
    monkeypatch.setitem(sys.modules, "tiny_module", sys.modules[__name__])

    def run(*settings, target="tiny_module:tiny"):
        return main(["train", target, f"workdir={tmp_path}/run", *settings])

    return run


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        (["lerning_rate=1"], 2, "unknown setting 'lerning_rate'"),
        (["stps=3"], 2, "Did you mean 'steps'?"),
        (["steps=many"], 2, "steps=many: expected int, found 'many'"),
        (["max_steps=0"], 2, "Experiment.max_steps is 0; it must be at least 1"),
        (["mesh=data=3"], 2, "mesh data=3 needs 3 devices, this run has 8"),
        (["batch_size=6"], 2, "a batch of 6 examples cannot be split into 8 equal parts"),
        (["microbatches=3"], 2, "microbatches=3 does not divide input.batch_size=8"),
        (["microbatches=2"], 2, "multiple of 16"),
        (["rule=tesnor"], 2, "error: rules: cannot split params/w: the mesh has no axis 'tesnor'"),
        (["mesh=data=-1,fsdp=-1"], 2, "error: mesh 'data=-1,fsdp=-1': every axis needs a size"),
        (["batch_axis_names=[dta]"], 2, "error: batch_axis_names: batch axes ['dta'] are not in the mesh"),
        (["compute_dtype=bf"], 2, "error: compute_dtype: compute_dtype='bf' is not a floating dtype"),
        (
            ["evaluated=true", "evaluations.test.dtype=bf"],
            2,
            "error: evaluations.test.dtype: compute_dtype='bf' is no",
        ),
        (
            ["evaluated=true", "evaluations.test.when=0"],
            2,
            "error: evaluations.test.when=0: Evaluation.when is 0; it",
        ),
        (["evaluated=true", "early=test/lossy"], 2, "error: stop.early reads the score 'test/lossy', but no"),
        (["mesh=fsdp=8"], 2, "dimension 0 has size 4, which mesh axis 'fsdp' of size 8 does not divide"),
        (["unreduced=true"], 2, r"loss must be a scalar or a Mean of scalars; it has shape (8,)"),
        (["ragged=true", "batch_size=16"], 3, "differ: x has shape"),
        (["seed=-1"], 2, "Experiment.seed is -1"),
        (["mesh=data=4,tensr=2"], 2, "mesh axis 'tensr' of size 2 only repeats work"),
        (["save.cast=bfloat61"], 2, "error: save.cast: there is no dtype 'bfloat61'"),
        (
            ["save.directory=https://b/run"],
            2,
            "save.directory: https://b/run cannot hold",
        ),
        (["save.host_nbytes=0"], 2, "Save.host_nbytes is 0; it must be at least 1"),
        (["workdir=/proc/nowhere"], 2, "the run directory /proc/nowhere cannot be written to"),
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
        ("tiny_module", "expected module:function, as gpt:experiment, or file.py:function"),
        ("./folder/my.py:experiment", "there is no module 'folder.my'"),
        ("tiny_module:init", "needs a value for 'key'"),
    ],
)
def test_a_target_that_is_not_there_is_told(train, capsys, target, says):
    assert train(target=target) == 2
    assert says in capsys.readouterr().err


def test_a_run_ends_with_its_result_and_can_be_resumed_for_longer(train, tmp_path, capsys):
    assert train() == 0
    assert re.search(r"^ done: step 4 in \S+ s   run \S+$", capsys.readouterr().out, re.M)
    assert main(["resume", f"{tmp_path}/run", "max_steps=6"]) == 0
    captured = capsys.readouterr()
    assert "continuing after step 4" in captured.err
    assert "done: step 6" in captured.out


def test_a_damaged_checkpoint_is_told_on_the_screen_and_the_run_goes_on(train, tmp_path, capsys):
    assert train("save.when=2") == 0
    (tmp_path / "run" / "checkpoints" / "step_00000004" / "manifest.json").write_text("{")
    assert train("save.when=2", "max_steps=6") == 0
    err = capsys.readouterr().err
    assert "continuing after step 2" in err
    assert "✗ step 4 is damaged; continuing from step 2 instead." in err


def test_checkpoints_in_a_store_are_found_by_the_run(train, tmp_path, s3_run, capsys):
    assert train(f"save.directory={s3_run}", "save.cast=bfloat16") == 0
    assert main(["resume", f"{tmp_path}/run", "max_steps=6"]) == 0
    assert "continuing after step 4" in capsys.readouterr().err
    assert main(["verify", f"{tmp_path}/run"]) == 0
    assert f"{s3_run}/step_00000006 is intact" in capsys.readouterr().out


def test_json_is_one_document_on_stdout(train, capsys):
    assert train("--json") == 0
    assert json.loads(capsys.readouterr().out).keys() == {"workdir", "step", "scores", "seconds"}
    assert train("stps=1", "--json") == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def test_a_loss_that_is_not_finite_ends_the_run_and_saves_nothing_more(train, tmp_path, capsys):
    assert train("diverging=true", "logging.every=2", "save.when=2") == 4
    assert "the loss reported at step 2 is nan" in capsys.readouterr().err
    assert not list((tmp_path / "run/checkpoints").glob("step_*"))


def test_asking_for_no_more_than_there_is_changes_nothing(train, tmp_path, capsys):
    assert train() == 0
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    assert train("max_steps=3") == 0
    captured = capsys.readouterr()
    assert "already at step 4: max_steps=3 asks for no more steps" in captured.err
    assert "To train more, give a larger number; to begin again, another workdir" in captured.err
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before


def test_data_that_ends_before_the_last_step_is_told(train, capsys):
    assert train("input.epochs=1", "max_steps=50") == 0
    assert "the data ended after 2 of 50 steps" in capsys.readouterr().err


def test_a_refused_run_does_not_touch_the_description_of_the_one_that_is_there(train, tmp_path):
    train()
    before = (tmp_path / "run/experiment.json").read_text()
    assert train("width=3", "max_steps=9") == 3
    assert (tmp_path / "run/experiment.json").read_text() == before


def test_a_damaged_description_is_told(tmp_path, capsys):
    (tmp_path / "experiment.json").write_text("{")
    assert main(["resume", str(tmp_path)]) == 3
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.slow
def test_doctor_proves_attention_on_this_hardware(monkeypatch, capsys):
    self_check = mw.nn._internal.self_check
    monkeypatch.setattr(mw.nn._internal, "self_check", lambda: self_check(num_cases=1))
    assert main(["doctor", "--attention"]) == 0
    assert re.search(r"attention +dtype .* gradients .*\n.* ok$", capsys.readouterr().out.strip())
    ignoring = lambda *arrays, segments, **asked: mw.nn.attention(*arrays, **asked)
    monkeypatch.setattr(mw.nn._internal, "self_check", lambda: self_check(ignoring, num_cases=2))
    assert main(["doctor", "--attention", "--json"]) == 1
    assert [each["holds"] for each in json.loads(capsys.readouterr().out)["attention"]] == [True, False]


def test_doctor_goes_on_where_a_probe_fails(monkeypatch, capsys):
    monkeypatch.setattr(jax, "local_devices", lambda: 1 / 0)
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["devices"] == "problem: division by zero"
    assert found["write"].startswith("ok")


def test_inspect_shows_a_run_that_has_not_saved_yet(train, tmp_path, capsys):
    assert train("diverging=true") == 4
    capsys.readouterr()
    assert main(["inspect", f"{tmp_path}/run"]) == 0
    assert "checkpoint  None" in capsys.readouterr().out


def test_without_a_command_it_helps(capsys):
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().err


def test_resume_needs_a_run(tmp_path, capsys):
    assert main(["resume", str(tmp_path)]) == 3
    assert f"{tmp_path} cannot be resumed: there is no {tmp_path}/experiment.json" in capsys.readouterr().err


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
    assert "is not a checkpoint" in capsys.readouterr().err


def test_convert_writes_what_other_programs_read(train, tmp_path, capsys):
    train()
    capsys.readouterr()
    words = ["convert", f"{tmp_path}/run", f"{tmp_path}/hf", "--to", "safetensors"]
    assert main([*words, "--subtree", "params", "--dtype", "bfloat16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == f"{tmp_path}/hf"
    with safetensors.safe_open(f"{tmp_path}/hf/model.safetensors", "np") as file:
        assert (list(file.keys()), file.get_slice("w").get_dtype()) == (["w"], "BF16")
    assert main(words) == 2
    assert "has model.safetensors already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "code", "says"),
    [
        ("--only=(", 2, "is not a regular expression"),
        ("--only=x", 2, "only: 'x' matches no name"),
        ("--subtree=param", 3, "Did you mean 'params'?"),
        ("--dtype=x", 2, "there is no dtype 'x'"),
        ("--config=x", 2, "--config has no effect without --map"),
        ("--map=to-hugging-face", 2, "needs the model's config.json: --config"),
        ("--map=hugging-face", 3, "config.json, which describes the model"),
    ],
)
def test_convert_says_which_choice_fits_nothing(train, tmp_path, capsys, option, code, says):
    train()
    words = ["convert", f"{tmp_path}/run", f"{tmp_path}/hf", "--to", "safetensors", option]
    assert main(words) == code
    assert says in capsys.readouterr().err


def test_doctor_reports_what_decides_whether_a_run_works(capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["jax"] == jax.__version__
    assert found["devices"] == "8 × cpu"
    assert found["compile"].startswith("ok")
    assert found["write"].startswith("ok")


def test_settings_are_refused_where_there_are_none_to_set(capsys):
    assert main(["doctor", "max_steps=3"]) == 2
    assert "meshwright doctor takes no settings, and 'max_steps=3' is one" in capsys.readouterr().err


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
    assert "there is no command 'nonsense'" in done.stderr
