"""What is told before the first step."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest

import meshwright as mw
from engine.adapters import models
from engine.trainer.runs import EXAMPLES, by_loss, deployer, fit, init, loss, saved, trainer
from meshwright.errors import ExamplesError, LayoutError, UsageError


def keeping_best(score):
    return mw.Save(keep=mw.checkpoints.best(score, "max"))


def descended(state, batch):
    return state.replace(step=state.step + 1), {"loss": batch["y"].mean()}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loss": lambda model: 0.0}, "does not take 'batch'"),
        ({"loss": lambda batch: 0.0}, "does not take 'model' or 'params'"),
        ({"loss": lambda model, batch, state: 0.0}, "asks for 'state'"),
        ({"loss": None}, "no loss and no train_step"),
        ({"train_step": lambda state: state}, "does not take 'batch'"),
        (
            {"train_step": lambda state, batch: state, "microbatches": 2},
            "microbatches=2",
        ),
        ({"microbatches": 0}, "microbatches=0"),
        ({"compute_dtype": "int8"}, "compute_dtype='int8' is not a floating dtype"),
        ({"trainable": "("}, "is not a regular expression"),
        (
            {"compile": mw.Compile({"xla_fast": True})},
            r"compile\.options: .*'xla_fast', of the compiler for cpu",
        ),
        ({"model": None, "loss": lambda params, batch: 0.0}, "no parameters to train"),
        ({"opt_state": ()}, "give params, too"),
        ({"params": init, "model_state": {}}, "the model has no state"),
        ({"params": init, "model": models.NnxNorm}, "the model has a state .* give model_state"),
    ],
)
def test_what_makes_no_trainer_is_told_when_it_is_made(options, says):
    with pytest.raises(UsageError, match=says):
        trainer(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epochs": None}, "the length of training is missing"),
        ({"epochs": 0}, r"Fit\.epochs is 0; it must be at least 1"),
        ({"max_steps": 2**31}, "max_steps is 2147483648; it must be at most"),
        ({"epochs": 2**31}, "the number of updates of all calls is [0-9]+; it must be at most"),
        ({"batch_size": None}, "give one of per_device_batch_size and batch_size"),
        ({"per_device_batch_size": 2}, "give one of per_device_batch_size and batch_size"),
        ({"batch_size": 0}, r"Fit\.batch_size is 0; it must be at least 1"),
        ({"batch_size": 12}, "batch_size=12 is not a multiple of 8"),
        ({"save": mw.Save(when=2)}, r"saving checkpoints needs .* Deployer\(workdir=...\)"),
        ({"save": mw.Save(data_position=False)}, r"save\.data_position: `fit` continues by the position"),
        ({"save": mw.Save(when=mw.engine.when_evaluated("test"))}, "the run has no evaluation 'test'"),
        ({"evaluations": {"a/b": by_loss()["eval"]}}, "'a/b' cannot be a folder's name"),
        ({"evaluations": {"a": len}}, r"evaluations\['a'\] is of type .*it must be Evaluation or"),
    ],
)
def test_settings_that_cannot_be_are_told_by_name(options, says):
    with pytest.raises(UsageError, match=says):
        fit(trainer(), **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compute_dtype": "bfloat16"}, "compute_dtype: has no effect on a train_step"),
        ({"trainable": "w"}, "the update changes parameters that are not trainable: params/b"),
    ],
)
def test_settings_that_an_update_of_ones_own_does_not_follow_are_told(options, says, monkeypatch):
    def shrink(state, batch):
        params = jax.tree.map(lambda x: 0.9 * x, state.params)
        return dataclasses.replace(state, step=state.step + 1, params=params), {"loss": batch["y"].mean()}

    made, said = trainer(loss=None, train_step=shrink, optimizer=optax.sgd(0.1), **options), []
    monkeypatch.setattr(made.deployer, "log_info", lambda info, *_: said.append(info))
    fit(made)
    assert says in "\n".join(said)


def test_an_optimizer_state_of_another_optimizer_is_told():
    params = init(jnp.uint32([0, 0]))
    made = trainer(params=params, opt_state=optax.sgd(0.1, momentum=0.9).init(params))
    with pytest.raises(UsageError, match=r"opt_state does not belong to this optimizer.*mu"):
        fit(made)


@pytest.mark.parametrize(
    ("options", "fitting", "says"),
    [
        ({"loss": lambda model, batch: model(batch["x"])}, {}, r"loss must be a scalar .* shape \(16,\)"),
        ({"loss": lambda model, batch: model(batch["z"])}, {}, "z"),
        ({}, {"evaluations": by_loss({"x": EXAMPLES["x"]})}, "y"),
        ({}, {"evaluations": by_loss([])}, "there are no examples"),
        ({}, {"save": keeping_best("accuracy")}, "but no evaluation gives it"),
        ({}, {"save": keeping_best("eval/los"), "evaluations": by_loss()}, "Did you mean 'eval/loss'"),
    ],
)
@pytest.mark.daily(3)
def test_parts_that_do_not_fit_are_found_before_the_first_step(tmp_path, options, fitting, says):
    made = trainer(tmp_path, **options)
    with pytest.raises((UsageError, ExamplesError, KeyError), match=says):
        fit(made, **fitting)
    assert made.step == 0


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (lambda preds, labels: {}, "the metric function .* asks for 'labels'"),
        (lambda examples: {}, "does not take 'preds'"),
        (lambda preds: 1.0, "the metric function returned a value of type float"),
        (lambda preds: {"all": preds}, "it must return numbers by name"),
        (lambda preds: {"loss": 1.0}, "returned 'loss', which is the name of an average"),
    ],
)
@pytest.mark.daily(2)
def test_a_metric_function_is_tried_before_the_first_step(metric, says):
    made = trainer()
    predictor = mw.Predictor(made.deployer, model=made.model, predict=lambda model, batch: model(batch["x"]))
    with pytest.raises(UsageError, match=f"(?s){says}"):
        fit(made, evaluations=by_loss(predict=predictor, metric_fn=metric))
    assert made.step == 0


def test_an_error_of_the_metric_function_s_keeps_its_type():
    made = trainer()
    predictor = mw.Predictor(made.deployer, model=made.model, predict=lambda model, batch: model(batch["x"]))
    with pytest.raises(ZeroDivisionError):
        fit(made, evaluations=by_loss(predict=predictor, metric_fn=lambda preds: {"a": 1 / 0}))


def test_saving_is_tried_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(mw.Checkpoints, "wait", lambda self: 1 / 0)
    made = trainer(tmp_path)
    with pytest.raises(ZeroDivisionError):
        fit(made)
    assert made.step == 0


def test_what_was_found_is_said(monkeypatch, tmp_path):
    made, said = trainer(given=deployer(tmp_path)), []
    monkeypatch.setattr(made.deployer, "log_info", lambda info, *_: said.append(info))
    fit(made, evaluations=by_loss())
    assert said[0].endswith(f"run {tmp_path}")
    assert "mesh data" in said[1]
    found = [line for line in said if line.startswith("✓")]
    assert found[0] == "✓ 2 arrays of 5 parameters fit the mesh"
    assert found[1] == "✓ one batch read: x float32[16, 4], y float32[16]"
    assert found[2].startswith("✓ step compiled in ")
    assert found[3].startswith("✓ evaluation of the first examples: eval/loss ")
    assert found[4].startswith("✓ state saved in ")


@pytest.mark.parametrize(("rules", "is_whole"), [(None, True), ([mw.parallel.fsdp(min_size=4)], False)])
def test_a_mesh_that_splits_parameters_says_if_none_is_split(rules, is_whole, monkeypatch):
    made, lines = trainer(mesh="data=2,fsdp=4", rules=rules), []
    monkeypatch.setattr(made.deployer, "log_info", lambda info, *_: lines.append(info))
    fit(made, max_steps=1)
    assert is_whole == any("none is split: rules=[mw.parallel.fsdp(min_size=16)]" in line for line in lines)


def test_a_batch_that_does_not_divide_over_accumulation_is_told():
    with pytest.raises(LayoutError, match="not a multiple of 24"):
        fit(trainer(microbatches=3))


def test_a_failed_check_leaves_a_run_that_can_be_mended(tmp_path):
    with pytest.raises(UsageError):
        fit(trainer(tmp_path), save=keeping_best("accuracy"))
    fit(trainer(tmp_path, loss=loss))
    assert saved(tmp_path) == [6]


@pytest.mark.parametrize("counted", [1, 2])
def test_a_schedule_that_counts_other_steps_than_the_trainer_makes_is_told(counted):
    given = deployer()
    rate = given.get_lr_schedule_fn(48, 2, 1, 0.1, microbatches=counted)
    made = trainer(given=given, optimizer=optax.sgd(rate), lr_schedule=rate, microbatches=3)
    with pytest.raises(UsageError, match=rf"made for microbatches={counted}, .*microbatches=3"):
        fit(made, batch_size=48)


def test_a_batch_that_is_wider_than_what_is_to_be_computed_in_is_told(capsys):
    made = trainer(given=mw.Deployer(0, mesh="data=-1"), compute_dtype="bfloat16")
    fit(made, epochs=1)
    assert "x, y of the batch are wider than bfloat16" in capsys.readouterr().err


@pytest.mark.parametrize("how", [{}, {"loss": None, "train_step": descended}])
def test_options_of_the_compiler_reach_it_and_are_told(how, tmp_path, capsys):
    options = {"xla_dump_to": str(tmp_path / "dumped"), "xla_dump_hlo_as_text": True}
    made = trainer(given=mw.Deployer(0, mesh="data=-1"), compile=mw.Compile(options), **how)
    fit(made, epochs=1)
    assert [*(tmp_path / "dumped").glob("*.txt")]
    assert f"options of the compiler for cpu: xla_dump_to={tmp_path}/dumped" in capsys.readouterr().err
