import gc
import json
import logging
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.base import _unknown_arguments as unknown_arguments
from meshwright.errors import UsageError
from meshwright.observe._tensorboard import read_scalars


def said(workdir):
    """The log without its times."""
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d ", "", (workdir / "log.txt").read_text())


def test_a_message_with_a_title_stands_in_a_frame_as_wide_as_its_longest_line(make_deployer, tmp_path):
    deployer = make_deployer(workdir=tmp_path)
    deployer.log_info("plain")
    deployer.log_info("loss: 0.5\naccuracy of the test set: 0.75", title="Eval results", step=7)
    deployer.log_info(3, title="Epochs")
    assert said(tmp_path).splitlines()[1:] == [
        "plain",
        "",
        "=" * 30,
        "### Eval results (step 7)",
        "-" * 30,
        "loss: 0.5",
        "accuracy of the test set: 0.75",
        "=" * 30,
        "",
        "==========",
        "### Epochs",
        "----------",
        "3",
        "==========",
    ]


def test_it_begins_by_saying_what_it_runs_on(tmp_path):
    mw.Deployer(0, num_model_shards=4, verbose=False, workdir=tmp_path).close()
    assert said(tmp_path) == "8 of 8 devices are local; mesh {'data': 2, 'tensor': 4}\n"


def test_messages_go_to_the_screen_and_quiet_ones_to_the_file_only(make_deployer, tmp_path, capsys):
    make_deployer(verbose=True).log_info("heard")
    make_deployer(workdir=tmp_path).log_info("read")
    assert "heard" in capsys.readouterr().err
    assert "read" in said(tmp_path)


def test_several_deployers_neither_repeat_each_other_nor_touch_the_program_s_loggers(make_deployer, tmp_path):
    before = [*logging.root.handlers], logging.root.level, {*logging.root.manager.loggerDict}
    deployers = [make_deployer(workdir=tmp_path / str(i)) for i in range(3)]
    for deployer in deployers:
        deployer.log_info("once")
    assert [said(tmp_path / str(i)).count("once") for i in range(3)] == [1, 1, 1]
    assert ([*logging.root.handlers], logging.root.level, {*logging.root.manager.loggerDict}) == before


def test_files_are_closed_even_if_nobody_closes_the_deployer(tmp_path):
    deployer = mw.Deployer(0, workdir=tmp_path, run_tensorboard=True, verbose=False)
    deployer.log_metrics({"loss": 1.0}, step=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an unclosed file is a ResourceWarning
        del deployer
        gc.collect()


def test_metrics_are_lines_of_json_and_go_to_every_tracker(make_deployer, tmp_path):
    heard = []
    deployer = make_deployer(workdir=tmp_path, trackers=[lambda step, values: heard.append((step, values))])
    deployer.log_metrics({"loss": jnp.float32(0.5), "epoch": np.int64(2), "lr": 1e-3}, step=np.int32(3))
    [line] = mw.observe.read_jsonl(tmp_path / "metrics.jsonl")
    assert {name: line[name] for name in ("step", "loss", "epoch", "lr")} == {
        "step": 3,
        "loss": 0.5,
        "epoch": 2,
        "lr": 1e-3,
    }
    assert heard == [(3, {"loss": 0.5, "epoch": 2.0, "lr": 1e-3})]


def test_a_tracker_that_fails_is_told_of_and_the_others_and_the_files_go_on(make_deployer, tmp_path):
    def down(step, values):
        raise ConnectionError("the server is gone")

    heard = []
    deployer = make_deployer(workdir=tmp_path, trackers=[down, lambda step, values: heard.append(step)])
    for step in (1, 2):
        deployer.log_metrics({"loss": 0.5}, step=step)
    assert (heard, len(mw.observe.read_jsonl(tmp_path / "metrics.jsonl"))) == ([1, 2], 2)
    assert said(tmp_path).count("down failed at the report of step 1; the run continues without it") == 1


def test_a_metric_called_step_gives_way_to_the_step_and_one_that_is_no_number_is_named(
    make_deployer, tmp_path
):
    deployer = make_deployer(workdir=tmp_path)
    deployer.log_metrics({"loss": 0.5, "step": jnp.int32(2)}, step=3)
    assert mw.observe.read_jsonl(tmp_path / "metrics.jsonl")[0]["step"] == 3
    for value in (np.ones(2), None):
        with pytest.raises(UsageError, match="the metric 'loss' must be a number"):
            deployer.log_metrics({"loss": value}, step=4)


def test_metrics_and_texts_go_to_tensorboard(tmp_path):
    with mw.Deployer(0, workdir=tmp_path, run_tensorboard=True, verbose=False) as deployer:
        deployer.log_metrics({"loss": 0.5}, step=3)
        deployer.log_info("a\nb", title="Notes", step=4)
        deployer.save_outputs([{"pred": i} for i in range(20)], desc="epoch0", step=5)
    assert read_scalars(tmp_path, "loss") == {3: 0.5}
    [events] = tmp_path.glob("events.out.tfevents.*")
    written = events.read_bytes()
    assert all(text in written for text in (b"Notes", b"a\n\nb", b"Output Samples", b'"pred": 9'))
    assert b'"pred": 10' not in written


def test_metrics_go_to_a_run_of_wandb_which_ends_with_the_deployer(monkeypatch):
    heard = []
    run = SimpleNamespace(
        log=lambda values, step: heard.append((step, values)), finish=lambda: heard.append("end")
    )
    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(init=lambda **kwargs: heard.append(kwargs) or run)
    )
    with mw.Deployer(0, wandb_init_kwargs={"project": "digits"}, verbose=False) as deployer:
        deployer.log_metrics({"loss": 0.5}, step=3)
    assert heard == [{"project": "digits"}, (3, {"loss": 0.5}), "end"]


def test_outputs_are_written_as_what_they_are(make_deployer, tmp_path):
    pred = {"scores": jnp.array([0.5, 2], jnp.bfloat16), "label": np.int64(3)}
    make_deployer(workdir=tmp_path).save_outputs(
        [{"example": ("a", None), "pred": pred}], desc="test", step=1
    )
    assert json.loads((tmp_path / "outputs_test.json").read_text()) == [
        {"example": ["a", None], "pred": {"scores": [0.5, 2.0], "label": 3}}
    ]


def test_without_a_workdir_nothing_is_written(make_deployer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    deployer = make_deployer()
    deployer.log_info("nothing", title="Title")
    deployer.log_metrics({"loss": 1.0}, step=1)
    deployer.save_outputs([1], desc="test", step=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("method", "argument", "answer"),
    [
        ("get_accumulate_grad_batches", "global_batch_size", "Write batch_size=."),
        ("get_model_input_batches", "collate_fn", "Write collate=."),
        ("get_model_input_batches", "shuffle_rng", "Write shuffle_key=."),
        ("get_model_input_batches", "accumulate_grad_batches", "Write microbatches=."),
        ("get_lr_schedule_fn", "n_epochs", "Write epochs=."),
        ("get_lr_schedule_fn", "accumulate_grad_batches", "Write microbatches=."),
        ("get_params_spec", "params_sharding_rules", "Write rules=."),
        ("load_ckpt", "params_sharding_rules", "Write rules=."),
        ("load_ckpt", "update_rng", "Write update_key=."),
        ("load_last_ckpt", "update_rng", "Write update_key=."),
        ("shard_params", "descr", "Did you mean 'desc'?"),
    ],
)
def test_an_argument_that_redco_calls_otherwise_is_answered_by_the_methods_too(
    make_deployer, method, argument, answer
):
    with pytest.raises(UsageError) as error:
        getattr(make_deployer(), method)(**{argument: 1})
    assert str(error.value).startswith(f"mw.Deployer.{method} has no argument {argument!r}. {answer}")


def test_each_argument_that_the_page_calls_renamed_is_answered_by_its_new_name():
    page = (Path(__file__).parents[3] / "docs/coming-from-redco.md").read_text()
    renamed = re.findall(r"`(\w+)` is\s`(\w+)`", page)
    assert len(renamed) == 11
    for old, new in renamed:
        text = unknown_arguments.instead("Deployer", old)
        assert f"Write {new}=" in text or unknown_arguments.synonym(old, [new]) == new, old


def test_what_a_checkpoint_is_told_besides_may_have_any_name(make_deployer, tmp_path):
    make_deployer(workdir=tmp_path).save_ckpt("a", {"w": np.ones(2, np.float32)}, n_epochs=3)
