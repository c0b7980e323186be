"""What an experiment evaluates, when, of which parameters, and what it leaves behind."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.engine._errors import errors_naming
from meshwright.engine._evaluation._files import OutputFiles
from meshwright.engine._evaluation._parts import EvaluationContext, evaluation_parts
from meshwright.engine._evaluation._rows import ExampleFunction
from meshwright.errors import LayoutError, PeersError, UsageError

EXAMPLES = {"x": np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)}
FEW = {"x": EXAMPLES["x"][:7]}


def init(key):
    return {"w": jax.random.normal(key, (4, 2))}


def errors(params, batch):
    return ((batch["x"] @ params["w"]) ** 2).sum(-1)


def measure(params, batch):
    return {"loss": errors(params, batch), "large": errors(params, batch) > 1}


def noisy_loss(params, batch, key):
    return (errors(params, batch) * jax.random.uniform(key, (16,))).mean()


def run(folder, **more):
    """Eight steps; with `evaluations` as given, `{"all": ...}` evaluated after the last step at least."""
    described = {
        "model": init,
        "loss": noisy_loss,
        "optimizer": optax.adam(0.05),
        "input": mw.Input(EXAMPLES, batch_size=16),
        "max_steps": 8,
        "save": mw.Save(when=4, keep=9),
        "logging": mw.Logging(every=1),
    }
    return mw.run(mw.Experiment(workdir=str(folder), **described | more))


def reports(folder, name):
    """The steps and values reported under a name."""
    found = mw.observe.read_jsonl(folder / "metrics.jsonl")
    return [(report["step"], report[name]) for report in found if name in report]


def steps(folder, name):
    return [step for step, _ in reports(folder, name)]


def saved(folder):
    return sorted(mw.Checkpoints(folder / "checkpoints").scores_by_step())


def outputs(folder, step, name="few"):
    lines = (folder / f"outputs/{name}/step_{step:08}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def exact(params, examples):
    x, w = (np.asarray(array, np.float64) for array in (examples["x"], params["w"]))
    return ((x @ w) ** 2).sum(-1)


def crash_at(step, monkeypatch):
    on_step = mw.observe.Console.on_step
    monkeypatch.setattr(mw.observe.Console, "on_step", lambda *a: 1 / 0 if a[1].step == step else on_step(*a))


WRITING = mw.Evaluation(
    measure, FEW, when=3, batch_size=16, outputs=lambda p, b: {"x": b["x"], "e": errors(p, b)}
)
WHOLE = mw.Evaluation(measure, EXAMPLES, when=2, batch_size=24)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A run with two evaluations of different cadence, and what it ended with."""
    folder, traced = tmp_path_factory.mktemp("evaluated"), {"loss": 0, "measure": 0}

    def counting(name, function):
        def counted(*arguments):
            traced[name] += 1
            return function(*arguments)

        return counted

    whole = mw.Evaluation(counting("measure", measure), EXAMPLES, when=2, batch_size=24)
    outcome = run(folder, loss=counting("loss", noisy_loss), evaluations={"all": whole, "few": WRITING})
    return folder, outcome, traced


@pytest.mark.slow
def test_each_is_made_at_its_own_steps_and_after_the_last(evaluated):
    folder, *_ = evaluated
    assert steps(folder, "all/loss") == [2, 4, 6, 8]
    assert steps(folder, "few/loss") == [3, 6, 8]


def test_training_is_the_same_to_the_bit_with_and_without(evaluated, tmp_path):
    folder, outcome, _ = evaluated
    without = run(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, outcome.state, without.state)
    assert reports(folder, "loss") == reports(tmp_path, "loss")


def test_one_measure_gives_several_scores_and_several_evaluations_share_it(evaluated):
    _, outcome, _ = evaluated
    params = outcome.state.params
    for name, examples in {"all": EXAMPLES, "few": FEW}.items():
        expected = exact(params, examples)
        assert outcome.scores[f"{name}/loss"] == pytest.approx(expected.mean(), rel=1e-5)
        assert outcome.scores[f"{name}/large"] == pytest.approx((expected > 1).mean())


def test_a_run_traces_the_loss_once_and_the_measure_once(evaluated):
    assert evaluated[2] == {"loss": 1, "measure": 1}


def test_how_long_each_took_is_reported_and_is_no_score(evaluated):
    folder, outcome, _ = evaluated
    assert steps(folder, "all/seconds") == [2, 4, 6, 8]
    assert all(seconds > 0 for _, seconds in reports(folder, "few/seconds"))
    assert outcome.scores.keys() == {"all/loss", "all/large", "few/loss", "few/large"}


def test_the_learning_rate_of_a_step_is_reported_once(tmp_path):
    run(tmp_path, logging=mw.Logging(every=2), evaluations={"e": mw.Evaluation(measure, FEW, when=3)})
    assert steps(tmp_path, "e/loss") == [3, 6, 8]
    assert steps(tmp_path, "learning_rate") == [2, 3, 4, 6, 8]


def test_how_long_one_took_is_not_on_the_screen(tmp_path, capsys):
    run(tmp_path, evaluations={"all": WHOLE}, max_steps=2)
    shown = capsys.readouterr().err
    assert "all/loss=" in shown
    assert "seconds=" not in shown


def test_the_last_checkpoint_has_all_scores_of_its_step(tmp_path):
    evaluations = {"twos": WHOLE, "threes": mw.Evaluation(measure, FEW, when=3)}
    outcome = run(tmp_path, evaluations=evaluations, save=mw.Save(when=3))
    assert mw.checkpoints.open_source(tmp_path / "checkpoints").extra["scores"] == outcome.scores


def test_outputs_are_a_line_for_each_real_example_in_order(evaluated):
    folder, outcome, _ = evaluated
    assert sorted(path.name for path in (folder / "outputs/few").iterdir()) == [
        f"step_{step:08}.jsonl" for step in (3, 6, 8)
    ]
    found = outputs(folder, 8)
    assert [row["x"] for row in found] == FEW["x"].tolist()
    np.testing.assert_allclose([row["e"] for row in found], exact(outcome.state.params, FEW), rtol=1e-5)


def test_outputs_of_an_attempt_that_was_lost_are_written_anew(evaluated, tmp_path, monkeypatch):
    with monkeypatch.context() as crashing:
        crash_at(7, crashing)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path, evaluations={"few": WRITING})
    before = outputs(tmp_path, 6)
    (tmp_path / "outputs/few/step_00000006.jsonl").write_text("of another past")
    run(tmp_path, evaluations={"few": WRITING})
    assert outputs(tmp_path, 6) == before == outputs(evaluated[0], 6)


def test_outputs_are_strict_json_of_any_real_dtype(tmp_path):
    def odd(params, batch):
        row = jnp.arange(16)
        return {
            "float": jnp.stack([row / 0.0, -1 / row, row + 0.5], 1),
            "half": row.astype(jnp.bfloat16),
            "even": row % 2 == 0,
        }

    run(tmp_path, max_steps=1, evaluations={"few": mw.Evaluation(measure, FEW, batch_size=16, outputs=odd)})
    assert outputs(tmp_path, 1)[:2] == [
        {"float": ["nan", "-inf", 0.5], "half": 0.0, "even": True},
        {"float": ["inf", -1.0, 1.5], "half": 1.0, "even": False},
    ]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (
            lambda p, b: {"mean": b["x"].mean()},
            r"evaluations\.few\.outputs: .*16 examples.*mean has shape \(\)",
        ),
        (lambda p, b: b["x"], r"evaluations\.few\.outputs: it must return \{name: array\}"),
        (lambda p, b: {"z": b["x"] * 1j}, r"evaluations\.few\.outputs: z has dtype complex64"),
    ],
)
def test_outputs_that_cannot_be_are_refused_before_the_first_step(tmp_path, monkeypatch, returned, says):
    monkeypatch.setattr(mw.training.Step, "compile", pytest.fail)
    with pytest.raises(UsageError, match=says):
        run(tmp_path, evaluations={"few": mw.Evaluation(measure, FEW, batch_size=16, outputs=returned)})


def test_the_average_is_evaluated_where_there_is_one_and_the_raw_parameters_if_told(tmp_path):
    raw = mw.Evaluation(measure, FEW, batch_size=16, params=lambda state: state.params)
    averaged = mw.Evaluation(
        measure, FEW, batch_size=16, outputs=lambda p, b: {"w": jnp.tile(p["w"].ravel(), (16, 1))}
    )
    tx = optax.chain(optax.adam(0.05), mw.training.keep_ema(0.9))
    outcome = run(tmp_path, optimizer=tx, evaluations={"raw": raw, "few": averaged})
    average = mw.training.ema_params(outcome.state)
    assert outcome.scores["raw/loss"] == pytest.approx(exact(outcome.state.params, FEW).mean(), rel=1e-5)
    assert outcome.scores["few/loss"] == pytest.approx(exact(average, FEW).mean(), rel=1e-5)
    np.testing.assert_array_equal(outputs(tmp_path, 8)[0]["w"], np.ravel(average["w"]))


@pytest.mark.parametrize(("train", "evaluation"), [("bfloat16", None), (None, "bfloat16")])
@pytest.mark.daily(1)
def test_an_evaluation_computes_in_a_dtype_of_its_own(tmp_path, train, evaluation):
    seen = []

    def seeing(params, batch, *key):
        seen.append((len(key), str(params["w"].dtype)))
        return noisy_loss(params, batch, *key) if key else measure(params, batch)

    evaluations = {"all": mw.Evaluation(seeing, EXAMPLES, batch_size=24, dtype=evaluation)}
    run(tmp_path, max_steps=2, loss=seeing, compute_dtype=train, evaluations=evaluations)
    assert sorted(seen) == [(0, evaluation or "float32"), (1, train or "float32")]


def test_another_method_and_another_field_are_a_measure_of_their_own(tmp_path):
    texts = {"x": EXAMPLES["x"], "target": np.arange(60) % 2}
    predict = lambda params, batch: {"correct": (batch["x"] @ params["w"]).argmax(-1) == batch["target"]}
    outcome = run(tmp_path, evaluations={"texts": mw.Evaluation(predict, texts, batch_size=24)})
    choice = (texts["x"] @ np.asarray(outcome.state.params["w"])).argmax(-1)
    assert outcome.scores == {"texts/correct": pytest.approx((choice == texts["target"]).mean())}


def test_a_policy_of_the_step_can_wait_and_the_last_step_can_be_left_out(tmp_path):
    late = lambda step, least=5: step >= least and step % 2 == 0
    evaluations = {
        "late": mw.Evaluation(measure, FEW, when=late),
        "never": mw.Evaluation(measure, FEW, 9, at_end=False),
    }
    outcome = run(tmp_path, max_steps=7, evaluations=evaluations)
    assert steps(tmp_path, "late/loss") == [6, 7]
    assert outcome.scores.keys() == {"late/loss", "late/large"}


def test_a_finished_run_that_is_called_again_has_the_scores_of_its_last_evaluations(tmp_path):
    evaluations = {
        "third": mw.Evaluation(measure, FEW, when=3, at_end=False),
        "end": mw.Evaluation(measure, FEW, when=100),
    }
    first, again = (run(tmp_path, max_steps=4, evaluations=evaluations).scores for _ in range(2))
    assert first.keys() == {"third/loss", "third/large", "end/loss", "end/large"}
    assert again == first


def below(folder):
    """A policy that is due when the last reported loss is below the fourth; and what it was given."""
    given = []

    def when(step, metrics):
        given.append((step, metrics.get("loss")))
        return metrics.get("loss", math.inf) < 2.7

    return {"low": mw.Evaluation(measure, FEW, when=when, at_end=False)}, given


@pytest.fixture(scope="module")
def informed(tmp_path_factory):
    """A run that evaluates when the reported loss is low, and what its policy was given."""
    folder = tmp_path_factory.mktemp("informed")
    evaluations, given = below(folder)
    run(folder, evaluations=evaluations, logging=mw.Logging(every=2))
    return folder, given


def test_a_policy_of_two_arguments_is_given_the_report_of_its_step_or_the_newest(informed):
    folder, given = informed
    reported = dict(reports(folder, "loss"))
    newest = lambda step: reported.get(step - 1 if step % 2 else step)
    assert given == [(step, newest(step)) for step in range(9)]
    assert steps(folder, "low/loss") == [step for step, loss in given if loss and loss < 2.7]
    assert 0 < len(steps(folder, "low/loss")) < 7


def test_a_run_that_is_killed_evaluates_at_the_same_steps(informed, tmp_path, monkeypatch):
    evaluations, _ = below(tmp_path)
    with monkeypatch.context() as crashing:
        crash_at(7, crashing)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path, evaluations=evaluations, logging=mw.Logging(every=2))
    evaluations, given = below(tmp_path)
    run(tmp_path, evaluations=evaluations, logging=mw.Logging(every=2))
    assert given == informed[1][4:]
    assert reports(tmp_path, "low/loss") == reports(informed[0], "low/loss")


@pytest.mark.parametrize("step", [3, 8])
def test_an_evaluation_that_raises_leaves_its_step_saved_and_is_owed(evaluated, tmp_path, step):
    failing = {"now": True}

    def failing_metric(scores):
        path = tmp_path / "metrics.jsonl"
        if failing["now"] and path.exists() and len(path.read_text().splitlines()) >= step - 1:
            raise ZeroDivisionError
        return {"twice": 2 * scores["loss"]}

    few = mw.Evaluation(measure, FEW, when=3, batch_size=16, metric_fn=failing_metric)
    with pytest.raises(ZeroDivisionError) as error:
        run(tmp_path, evaluations={"all": WHOLE, "few": few})
    assert f"The state of step {step} is saved." in error.value.__notes__[-1]
    assert (max(saved(tmp_path)), steps(tmp_path, "loss")[-1]) == (step, step)
    failing["now"] = False
    outcome = run(tmp_path, evaluations={"all": WHOLE, "few": few})
    assert steps(tmp_path, "few/twice") == [3, 6, 8]
    assert "few/twice" in mw.Checkpoints(tmp_path / "checkpoints").scores_by_step()[step]
    assert reports(tmp_path, "few/loss") == reports(evaluated[0], "few/loss")
    assert reports(tmp_path, "all/loss") == reports(evaluated[0], "all/loss")
    assert steps(tmp_path, "loss") == list(range(1, 9))
    np.testing.assert_array_equal(outcome.state.params["w"], evaluated[1].state.params["w"])


def test_a_state_that_cannot_be_saved_leaves_the_error_of_the_evaluation(tmp_path, monkeypatch):
    def failing_metric(scores):
        if (tmp_path / "metrics.jsonl").exists():
            monkeypatch.setattr(mw.Checkpoints, "save", lambda *_: 1 / 0)
            raise KeyError("mine")
        return {}

    few = mw.Evaluation(measure, FEW, when=3, batch_size=16, metric_fn=failing_metric)
    with pytest.raises(KeyError, match="mine") as error:
        run(tmp_path, evaluations={"few": few})
    assert "The state of step 3 was not saved: division by zero" in error.value.__notes__


def test_a_save_can_wait_for_several_evaluations_at_one_step(tmp_path, monkeypatch):
    evaluations = {"twos": mw.Evaluation(measure, FEW, when=2), "threes": mw.Evaluation(measure, FEW, when=3)}
    both = mw.Save(when=mw.engine.when_evaluated("twos", "threes"), keep=9)
    with monkeypatch.context() as crashing:
        crash_at(8, crashing)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path, evaluations=evaluations, save=both)
    assert saved(tmp_path) == [6]
    run(tmp_path, evaluations=evaluations, save=both)
    assert saved(tmp_path) == [6, 8]


def test_a_save_can_go_by_the_scores_of_its_very_step(tmp_path):
    seen = {}

    def when(step, scores):
        seen[step] = scores
        return scores.get("all/loss", math.inf) < math.inf

    run(tmp_path, evaluations={"all": WHOLE}, save=mw.Save(when=when, keep=9), max_steps=5)
    assert saved(tmp_path) == [2, 4, 5]
    assert [step for step, scores in seen.items() if scores == {}] == [0, 1, 3]  # the last is saved anyway
    assert seen[4] == {name: dict(reports(tmp_path, name))[4] for name in ("all/loss", "all/large")}


def test_the_last_checkpoint_has_the_scores_of_the_last_evaluation(tmp_path):
    rare = mw.Evaluation(measure, FEW, when=3)
    outcome = run(tmp_path, evaluations={"all": rare}, save=mw.Save(when=4), max_steps=8)
    assert mw.Checkpoints(tmp_path / "checkpoints").scores() == outcome.scores


def test_a_save_that_waits_for_what_there_is_not_is_refused(tmp_path):
    waiting = mw.Save(when=mw.engine.when_evaluated("al"))
    with pytest.raises(UsageError, match=r"'al'.*Did you mean 'all'\?\n  Its evaluations are: all"):
        run(tmp_path, evaluations={"all": WHOLE}, save=waiting)


@pytest.mark.parametrize("part", [lambda when: mw.Evaluation(measure, FEW, when), mw.Save])
def test_a_policy_of_three_arguments_is_refused(part):
    with pytest.raises(UsageError, match="the reported numbers; this function takes 3 arguments"):
        part(lambda step, metrics, more: True)


@pytest.mark.parametrize("num_devices", [1, 8])
def test_outputs_are_those_of_the_examples_on_any_number_of_devices(tmp_path, num_devices):
    layout = mw.Layout(mw.make_mesh("data=-1", jax.devices()[:num_devices]))
    state = mw.training.init_state(init, optax.sgd(0.1), 0, layout)
    chosen = {"compute_dtype": None, "params": mw.training.eval_params}
    rows = ExampleFunction(WRITING.outputs, WRITING.batch_size, layout, 0, **chosen)
    OutputFiles(rows, FEW)(tmp_path / "outputs/few", 5, state)
    found = outputs(tmp_path, 5)
    assert [row["x"] for row in found] == FEW["x"].tolist()
    np.testing.assert_allclose([row["e"] for row in found], exact(state.params, FEW), rtol=1e-5)


def test_the_last_checkpoint_has_the_scores_of_the_end_where_the_data_end_at_a_step_that_is_saved(tmp_path):
    given = mw.Input(EXAMPLES, batch_size=16, epochs=1)
    evaluations = {"few": mw.Evaluation(measure, FEW, when=99)}
    outcome = run(tmp_path, input=given, evaluations=evaluations, save=mw.Save(when=1))
    assert outcome.step == 3
    assert mw.Checkpoints(tmp_path / "checkpoints").scores() == outcome.scores != {}


def test_the_end_of_another_process_is_no_fault_of_a_setting():
    with pytest.raises(PeersError, match=r"^process 3 has ended$"), errors_naming("evaluations.all.measure"):
        raise PeersError("process 3 has ended")


def test_the_usual_batch_size_is_rounded_up_to_what_the_mesh_splits():
    layout = mw.Layout(mw.make_mesh("data=3,fsdp=2", jax.devices()[:6]))

    def names(**size):
        evaluations = {"all": mw.Evaluation(measure, EXAMPLES, **size)}
        (part,) = evaluation_parts(evaluations, None, EvaluationContext(layout, seed=0, compute_dtype=None))
        part.scoring.check(mw.training.abstract_state(init, optax.sgd(0.1), layout))
        return part.scoring.names

    assert names() == ("large", "loss")
    with pytest.raises(LayoutError, match="a batch of 64 examples cannot be split into 6 equal parts"):
        names(batch_size=64)


def test_the_loss_of_a_trainer_evaluates_no_experiment(tmp_path):
    with pytest.raises(UsageError, match=r'^evaluations\.all\.measure is "loss", but there is no loss'):
        run(tmp_path, evaluations={"all": mw.Evaluation("loss", EXAMPLES)})
