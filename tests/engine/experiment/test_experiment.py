import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import EXAMPLES, init, loss, losses, measure
from engine.experiment.runs import experiment as described
from meshwright.checkpoints._choice import checkpoints_of
from meshwright.errors import InputError, Interrupted, UsageError


def experiment(run, **more):
    evaluation = mw.Evaluation(measure, EXAMPLES, when=4, batch_size=24)
    return described(run, **{"evaluations": {"all": evaluation}} | more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    return run, mw.run(experiment(run)), mw.observe.read_jsonl(run / "metrics.jsonl")


def test_it_ends_with_the_state_the_step_and_the_scores(finished):
    _, outcome, _ = finished
    assert outcome.step == int(outcome.state.step) == 10
    expected = np.mean(np.sum((EXAMPLES["x"] @ np.asarray(outcome.state.params["w"])) ** 2, -1))
    assert outcome.scores == {"all/loss": pytest.approx(expected, rel=1e-5)}


def test_reports_come_on_their_steps_and_before_each_save(finished):
    *_, reports = finished
    assert [report["step"] for report in reports if "loss" in report] == [4, 5, 8, 10]


def test_reports_have_rates_and_waits(finished):
    *_, reports = finished
    last = next(report for report in reversed(reports) if "loss" in report)
    assert {"grad_norm", "steps_per_second", "examples_per_second", "input_wait"} <= last.keys()
    assert last["examples_per_second"] == pytest.approx(16 * last["steps_per_second"])


def test_the_time_to_compile_is_reported(finished):
    *_, reports = finished
    assert reports[0]["compile_seconds"] > 0


def test_scores_come_on_their_steps_and_at_the_end(finished):
    *_, reports = finished
    assert [report["step"] for report in reports if "all/loss" in report] == [4, 8, 10]


def test_the_step_is_compiled_once_in_the_whole_run(tmp_path, monkeypatch):
    compiled, compile_it = [], jax.stages.Lowered.compile
    monkeypatch.setattr(
        jax.stages.Lowered, "compile", lambda *a, **k: compiled.append(a) or compile_it(*a, **k)
    )
    mw.run(experiment(tmp_path))
    assert len(compiled) == 2  # the first state, and the step


def test_a_finished_run_continues_when_it_is_told_to_go_further(finished):
    run, *_ = finished
    after = mw.run(experiment(run, max_steps=12))
    assert after.step == 12
    undisturbed = mw.run(experiment(run / "other", max_steps=12))
    assert np.array_equal(after.state.params["w"], undisturbed.state.params["w"])


@pytest.mark.slow
def test_under_another_default_implementation_of_keys_a_run_goes_on_to_the_bit(tmp_path):
    def with_dropout(params, batch, key):
        return loss(params, {"x": batch["x"] * jax.random.bernoulli(key, 0.5, batch["x"].shape)}, key)

    described = {"loss": with_dropout, "logging": mw.Logging(every=1)}
    mw.run(experiment(tmp_path / "undisturbed", **described))
    mw.run(experiment(tmp_path / "changed", max_steps=3, **described))
    before = jax.config.jax_default_prng_impl
    jax.config.update("jax_default_prng_impl", "rbg")
    try:
        mw.run(experiment(tmp_path / "changed", **described))
    finally:
        jax.config.update("jax_default_prng_impl", before)
    assert losses(tmp_path / "changed") == losses(tmp_path / "undisturbed")


def doing_at(step, act, monkeypatch):
    """Do something in the turn of one step, where a real run would be hit."""
    on_step = mw.observe.Console.on_step
    monkeypatch.setattr(
        mw.observe.Console, "on_step", lambda self, tick: act() if tick.step == step else on_step(self, tick)
    )


def test_a_crash_between_reports_and_saves_leaves_no_gap_and_no_overlap(tmp_path, monkeypatch):
    odd = {"logging": mw.Logging(every=5), "save": mw.Save(when=7), "max_steps": 15}
    with monkeypatch.context() as crashing:
        doing_at(9, lambda: 1 / 0, crashing)
        with pytest.raises(ZeroDivisionError):
            mw.run(experiment(tmp_path / "crashed", **odd))
    mw.run(experiment(tmp_path / "crashed", **odd))
    mw.run(experiment(tmp_path / "undisturbed", **odd))
    assert losses(tmp_path / "crashed") == losses(tmp_path / "undisturbed")


def test_a_run_that_is_told_to_stop_saves_and_does_not_evaluate(tmp_path, monkeypatch):
    doing_at(4, lambda: signal.raise_signal(signal.SIGTERM), monkeypatch)
    with pytest.raises(Interrupted, match="after step 4"):
        mw.run(experiment(tmp_path))
    assert mw.Checkpoints(tmp_path / "checkpoints").latest() == 4
    assert not [r for r in mw.observe.read_jsonl(tmp_path / "metrics.jsonl") if "all/loss" in r]


def test_another_batch_size_continues_the_same_order(tmp_path):
    mw.run(experiment(tmp_path, max_steps=5))
    mw.run(experiment(tmp_path, max_steps=7, input=mw.Input(EXAMPLES, batch_size=8)))
    source = mw.checkpoints.open_source(tmp_path / "checkpoints")
    assert source.extra["data"]["samples"] == 5 * 16 + 2 * 8


def test_other_data_than_before_is_refused(tmp_path):
    mw.run(experiment(tmp_path, max_steps=2))
    fewer = {"x": EXAMPLES["x"][:32]}
    with pytest.raises(InputError, match="num_examples was 64, is 32"):
        mw.run(experiment(tmp_path, input=mw.Input(fewer, batch_size=16)))


def test_another_model_than_before_is_refused_with_both_shapes(tmp_path):
    mw.run(experiment(tmp_path, max_steps=2))
    with pytest.raises(InputError, match=r"(?s)params/w.*4, 2.*4, 3.*another program.*another workdir"):
        mw.run(experiment(tmp_path, model=lambda key: {"w": jnp.ones((4, 3))}))


def test_a_run_that_another_process_holds_is_refused(tmp_path):
    with mw.Checkpoints(tmp_path / "checkpoints"), pytest.raises(UsageError, match="process"):
        mw.run(experiment(tmp_path))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_steps": 0}, "Experiment.max_steps is 0"),
        ({"max_steps": 2**31}, "Experiment.max_steps is 2147483648; it must be at most 2147483647, as"),
        ({"microbatches": 3}, "microbatches=3 does not divide input.batch_size=16"),
        ({"max_steps": -1}, "Experiment.max_steps is -1"),
        ({"max_steps": 1e3}, r"Experiment\.max_steps is 1000\.0; it must be int\."),
        ({"seed": True}, r"Experiment\.seed is True; it must be int\."),
        (
            {"mesh": None, "remat": 9},
            r"(?s)mesh is of type NoneType.*remat is 9; .* str or no",
        ),
        ({"input": EXAMPLES}, r"Experiment\.input is of type dict; it must be Input\."),
        (
            {"evaluations": {"all": measure}},
            r"Experiment\.evaluations\['all'\] is of type function; it must be Evaluation",
        ),
        ({"loss": "loss"}, r"Experiment\.loss is 'loss'; it must be a function"),
        ({"profile": (2,)}, r"Experiment\.profile is of type tuple"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(wrong, says):
    with pytest.raises(UsageError, match=says):
        experiment("runs/x", **wrong)


def test_a_loss_that_returns_no_number_is_refused_before_a_split_of_the_parameters_is_looked_for(tmp_path):
    wrong = experiment(tmp_path, loss=lambda params, batch: "loss", mesh="fsdp=8", rules=None)
    with pytest.raises(UsageError, match="loss must be a scalar or a Mean of scalars; it is of type str"):
        mw.run(wrong)


def test_the_best_checkpoint_by_an_evaluation_is_kept_besides_the_newest(tmp_path):
    keep = mw.checkpoints.best("all/loss", "max")  # the loss falls, so that is the first
    mw.run(experiment(tmp_path, save=mw.Save(when=4, keep=keep)))
    left = sorted(path.name for path in (tmp_path / "checkpoints").glob("step_*"))
    assert left == ["step_00000004", "step_00000010"]


def test_parts_refuse_their_own_values_by_name():
    with pytest.raises(UsageError, match=r"Input\.batch_size is 0"):
        mw.Input(EXAMPLES, batch_size=0)
    with pytest.raises(UsageError, match=r"Logging\.every is 0"):
        mw.Logging(every=0)
    with pytest.raises(UsageError, match=r"Stop\.max_seconds is '9'; .* float or no"):
        mw.Stop(max_seconds="9")
    with pytest.raises(UsageError, match=r"Profile\.processes is 'some'"):
        mw.Profile((1,), processes="some")
    with pytest.raises(UsageError, match=r"Watchdog\.timeout_seconds: there is no phase evaluations"):
        mw.Watchdog({"step": 60, "evaluations": 5})
    with pytest.raises(UsageError, match=r"Save\.keep is 0"):
        mw.Save(keep=0)
    with pytest.raises(UsageError, match=r"Evaluation\.when is 'often'; it must be int or a function"):
        mw.Evaluation(measure, EXAMPLES, when="often")


def test_numbers_of_numpy_and_lists_will_do():
    made = experiment("runs/x", max_steps=np.int64(3), stop=mw.Stop(max_seconds=np.float32(2)), rules=[])
    assert (made.max_steps, made.stop.max_seconds) == (3, 2.0)


def test_checkpoints_may_be_elsewhere_and_the_run_says_where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mw.run(experiment("run", max_steps=2, save=mw.Save(directory="elsewhere/run")))
    assert mw.run(experiment("run", max_steps=4, save=mw.Save(directory="elsewhere/run"))).step == 4
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert mw.checkpoints.open_source(checkpoints_of("run")).step == 4
    assert checkpoints_of("run") == str(tmp_path / "elsewhere" / "run")


@pytest.mark.slow
def test_checkpoints_may_be_in_an_object_store(tmp_path, s3_run):
    save = mw.Save(when=4, directory=s3_run)
    mw.run(experiment(tmp_path / "first", max_steps=5, save=save))
    continued = mw.run(experiment(tmp_path / "second", save=save))
    undisturbed = mw.run(experiment(tmp_path / "undisturbed"))
    assert np.array_equal(continued.state.params["w"], undisturbed.state.params["w"])
    assert checkpoints_of(str(tmp_path / "second")) == s3_run


@pytest.mark.parametrize("cast", ["bfloat16", [("params/w", jnp.bfloat16)]])
@pytest.mark.daily(1)
def test_parameters_are_saved_in_another_dtype_and_cast_back(tmp_path, cast):
    save = mw.Save(cast=cast)
    mw.run(experiment(tmp_path, max_steps=2, save=save))
    assert mw.checkpoints.open_source(tmp_path / "checkpoints").arrays()["params/w"].dtype.name == "bfloat16"
    assert mw.run(experiment(tmp_path, max_steps=3, save=save)).state.params["w"].dtype == np.float32


@pytest.mark.parametrize(
    ("save", "says"),
    [
        ({"cast": "bfloat61"}, r"^save\.cast: there is no dtype 'bfloat61'"),
        ({"cast": [("parms/.*", "bfloat16")]}, r"^save\.cast: 'parms/\.\*' matches no name"),
        ({"directory": "az://bucket/run"}, r"^save\.directory: az://bucket cannot be opened"),
        ({"directory": "file/x"}, r"^save\.directory: .*/file/x cannot be used: Not a directory"),
        ({"directory": "s3://bukcet/run"}, r"^save\.directory: s3://bukcet/run cannot be used: "),
    ],
)
def test_checkpoints_that_cannot_be_are_refused_by_name_before_anything_starts(
    tmp_path, monkeypatch, s3_run, save, says
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(mw.training.Step, "compile", pytest.fail)
    with pytest.raises(UsageError, match=says):
        mw.run(experiment("run", save=mw.Save(**save)))


def test_a_save_refuses_its_own_values_by_name():
    with pytest.raises(UsageError, match=r"Save\.host_nbytes is 0"):
        mw.Save(host_nbytes=0)
    with pytest.raises(UsageError, match=r"Save\.directory is empty"):
        mw.Save(directory="")


def test_a_run_whose_time_is_over_is_saved_and_can_be_continued(tmp_path, finished):
    _, outcome, _ = finished
    with pytest.raises(Interrupted, match="max_seconds") as stopped:
        mw.run(experiment(tmp_path, stop=mw.Stop(max_seconds=0.0)))
    assert stopped.value.exit_code == 75
    assert mw.Checkpoints(tmp_path / "checkpoints").latest() == 1
    continued = mw.run(experiment(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, continued.state, outcome.state)


def test_a_run_that_gets_no_better_is_done(tmp_path):
    early = mw.engine.early_stopping(
        "all/loss", "max", patience=2
    )  # the loss falls, so by "max" it gets worse
    evaluation = mw.Evaluation(measure, EXAMPLES, when=1)
    described = {"evaluations": {"all": evaluation}, "max_steps": 20, "stop": mw.Stop(early=early)}
    assert mw.run(experiment(tmp_path, **described)).step == 3
    assert mw.Checkpoints(tmp_path / "checkpoints").latest() == 3


LOSSY = mw.checkpoints.best("all/lossy", "min")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"stop": mw.Stop(early=mw.engine.early_stopping("all/lossy", "min", 3))},
            r"^stop.early reads the score 'all/lossy', but no",
        ),
        ({"save": mw.Save(keep=LOSSY)}, r"(?s)^save\.keep reads the score .* Did you mean 'all/loss'\?"),
        (
            {
                "save": mw.Save(keep=mw.checkpoints.keep_any(mw.checkpoints.last(1), LOSSY)),
                "evaluations": {},
            },
            r"(?s)^save\.keep reads the score .* The scores are: none; give examples to evaluate on",
        ),
    ],
)
def test_a_policy_by_a_score_that_no_evaluation_gives_is_refused(tmp_path, monkeypatch, more, says):
    monkeypatch.setattr(mw.training.Step, "compile", pytest.fail)
    with pytest.raises(UsageError, match=says):
        mw.run(experiment(tmp_path, **more))


def test_a_score_in_event_files_is_not_looked_for_among_the_evaluations(tmp_path):
    keep = mw.checkpoints.best("loss", "min", events=tmp_path)
    assert mw.run(experiment(tmp_path, max_steps=2, save=mw.Save(keep=keep))).step == 2


@pytest.mark.parametrize(
    ("scores", "ends"), [((np.nan, 3, 2, 1), False), ((2, np.nan, np.nan), True), ((np.nan,) * 3, True)]
)
def test_a_score_that_is_no_number_is_the_worst(scores, ends):
    for mode, sign in {"min": 1, "max": -1}.items():
        history = {step: {"all/loss": sign * score} for step, score in enumerate(scores)}
        assert mw.engine.early_stopping("all/loss", mode, patience=2)(history) == ends


def test_patience_outlives_a_restart(tmp_path):
    early = mw.engine.early_stopping("all/loss", "max", patience=4)
    described = {
        "evaluations": {"all": mw.Evaluation(measure, EXAMPLES, when=1)},
        "stop": mw.Stop(early=early),
    }
    mw.run(experiment(tmp_path, **described, max_steps=3))
    assert mw.run(experiment(tmp_path, **described, max_steps=20)).step == 5


def test_scores_from_before_a_restart_are_not_judged_again(tmp_path):
    asked = []

    def never_enough(history):
        asked.append(max(step for step, scores in history.items() if "all/loss" in scores))
        return False

    evaluation = mw.Evaluation(measure, EXAMPLES, when=4)
    described = {
        "evaluations": {"all": evaluation},
        "stop": mw.Stop(early=never_enough),
        "logging": mw.Logging(every=5),
    }
    with pytest.raises(Interrupted):
        mw.run(experiment(tmp_path, **described | {"stop": mw.Stop(0.0, never_enough)}))
    assert mw.Checkpoints(tmp_path / "checkpoints").latest() == 1
    asked.clear()
    mw.run(experiment(tmp_path, **described))
    assert asked == [4, 8]


def test_a_run_computes_in_another_dtype_and_keeps_its_own(tmp_path):
    seen = []

    def recording(params, batch, key):
        seen.append(params["w"].dtype)
        return loss(params, batch, key)

    outcome = mw.run(experiment(tmp_path, loss=recording, compute_dtype="bfloat16"))
    assert {str(dtype) for dtype in seen} == {"bfloat16"}
    assert outcome.state.params["w"].dtype == jnp.float32


def test_a_model_is_traced_for_its_outline_and_for_its_arrays_and_no_more(tmp_path):
    traced = []
    model = lambda key: traced.append(key) or init(key)
    mw.run(experiment(tmp_path, model=model, max_steps=1))
    assert len(traced) == 2


def test_a_finished_run_removes_what_a_killed_attempt_left(tmp_path):
    mw.run(experiment(tmp_path, save=mw.Save(when=4, keep=mw.checkpoints.everything)))
    mw.run(experiment(tmp_path, save=mw.Save(when=4, keep=1)))
    assert [path.name for path in (tmp_path / "checkpoints").glob("step_*")] == ["step_00000010"]


def test_what_asks_for_the_step_gets_that_of_the_state_also_after_a_restart(tmp_path):
    def of_step(params, batch, step):
        return (params["w"] * step).sum() + 0 * batch["x"].mean()

    def measured(params, batch, step):
        return {"now": jnp.full(len(batch["x"]), step)}

    def started(**more):
        one = mw.Evaluation(
            measured, EXAMPLES, when=2, batch_size=16, metric_fn=lambda scores, step: {"step": step}
        )
        every = {
            "test": one,
            "all": mw.engine.EvaluationFunction(lambda params, step: {"step": step}, when=2),
        }
        chosen = {"loss": of_step, "optimizer": optax.sgd(1.0), "evaluations": every} | more
        return mw.run(experiment(tmp_path, **chosen))

    started(max_steps=2)
    first = mw.training.init_state(init, optax.sgd(1.0), 0, mw.Layout(mw.make_mesh("data=-1"))).params["w"]
    outcome = started(max_steps=4, microbatches=2, remat="nothing")
    np.testing.assert_allclose(outcome.state.params["w"], first - (0 + 1 + 2 + 3), rtol=1e-5)
    assert outcome.scores == {"test/now": 4, "test/step": 4, "all/step": 4}
