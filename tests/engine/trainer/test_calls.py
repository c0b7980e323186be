"""`fit` called again: each call trains more, and a process that begins anew finds where it was."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.trainer.runs import EXAMPLES, arrays, by_loss, deployer, fit, reports, trainer
from engine.trainer.test_resume import Crash, at, crash, sigterm
from meshwright.errors import DivergedError, Interrupted, UsageError

OTHERS = {"x": EXAMPLES["x"][::-1][:32], "y": EXAMPLES["y"][::-1][:32]}
"""32 other examples: two batches of 16."""


def three_calls(made, **options):
    """Three epochs of three steps in two calls on some examples, and between them one on others."""
    fit(made, epochs=1, **options)
    fit(made, OTHERS, epochs=2, **options)
    fit(made, epochs=2, **options)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    made = trainer(folder)
    three_calls(made)
    return arrays(made), reports(folder)


def test_each_call_trains_more_on_the_examples_it_is_given():
    made = trainer()
    steps = [fit(made, epochs=1) or made.step, fit(made, OTHERS, epochs=2) or made.step]
    assert steps == [3, 3 + 4]


def drawn_in(play):
    """Return the examples of the two batches of each call, and what `mw.data.mapped` has drawn for them."""
    rows = []

    def noted(example, rng):
        return {"id": np.float32(example["id"]), "drawn": np.float32(rng.normal())}

    def loss(params, batch):
        named = {f"{name}/{i}": x[i] for name, x in batch.items() for i in range(8)}
        return (params["w"] - batch["drawn"].mean()) ** 2, named

    def track(step, metrics):
        if "id/0" in metrics:
            rows.append([[metrics[f"{name}/{i}"] for i in range(8)] for name in ("id", "drawn")])

    shared = deployer(trackers=[track])
    made = mw.Trainer(shared, params={"w": jnp.zeros(())}, loss=loss, optimizer=optax.sgd(0.1))
    data, options = (
        mw.data.mapped(noted, {"id": np.arange(20)}),
        {"batch_size": 8, "logging": mw.Logging(every=1)},
    )
    play(shared, lambda: made.fit(data, epochs=1, **options))
    return np.array(rows).reshape(-1, 2, 2, 8)  # call, batch, name, row


def six_calls(shared, fit):
    for _ in range(6):
        fit()


def three_rounds_of_two_calls(shared, fit):
    for _ in shared.rounds(3):
        fit()
        fit()


@pytest.mark.parametrize("play", [six_calls, three_rounds_of_two_calls])
def test_each_call_has_an_order_and_random_numbers_of_its_own(play):
    calls = drawn_in(play)
    assert len({call[:, 0].tobytes() for call in calls}) == 6
    assert len(np.unique(calls[:, :, 1])) == calls[:, :, 1].size
    assert set(calls[:, :, 0].flat) == set(range(20))


def test_max_steps_are_those_of_the_call():
    made = trainer()
    for _ in range(3):
        fit(made, epochs=None, max_steps=5)
    assert made.step == 15


def test_a_workdir_changes_no_bits(undisturbed):
    made = trainer()
    three_calls(made)
    assert arrays(made) == undisturbed[0]


def test_calls_of_equal_shapes_trace_and_compile_nothing():
    made = trainer()
    fit(made, epochs=1)
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(mw.training.Step, "trace", lambda *_: pytest.fail("traced again"))
        fit(made, OTHERS, epochs=1)


@pytest.mark.parametrize(
    ("act", "step"),
    [
        (crash, 2),
        (sigterm, 4),
        (crash, 8),
        (sigterm, 12),
        *(pytest.param(crash, step, marks=pytest.mark.long) for step in (4, 6, 12)),
        *(pytest.param(sigterm, step, marks=pytest.mark.long) for step in (2, 6, 8)),
    ],
)
@pytest.mark.daily(2)
def test_whenever_it_is_stopped_the_same_calls_come_to_the_same_bits(tmp_path, undisturbed, act, step):
    first = trainer(given=deployer(tmp_path, trackers=[at(step, act)]))
    with pytest.raises((Interrupted, Crash)):
        three_calls(first, save=mw.Save(when=1), logging=mw.Logging(every=1))
    second = trainer(tmp_path)
    three_calls(second)
    assert arrays(second) == undisturbed[0]


def test_finished_calls_return_their_scores_at_once(tmp_path):
    found = fit(trainer(tmp_path), evaluations=by_loss(), epochs=1)
    made = trainer(tmp_path)
    fit(made, epochs=1)
    fit(made, OTHERS, epochs=1)
    again = trainer(tmp_path)
    assert fit(again, evaluations=by_loss(), epochs=1) == found
    assert again.step == made.step == 5


def test_a_finished_call_with_other_examples_is_told(tmp_path, monkeypatch):
    made = trainer(tmp_path)
    fit(made, epochs=1)
    fit(made, epochs=1)
    again, said = trainer(tmp_path), []
    monkeypatch.setattr(again.deployer, "log_info", lambda info, *_: said.append(info))
    fit(again, OTHERS, epochs=1)
    assert "call 1 of fit was finished before, at step 3, on other examples" in said[-1]


@pytest.fixture
def few_kept(monkeypatch):
    monkeypatch.setattr("meshwright.engine._trainer._epochs.NUM_KEPT", 2)


def test_checkpoints_tell_all_of_the_newest_calls_alone(tmp_path, few_kept):
    made = trainer(tmp_path)
    for _ in range(5):
        fit(made, epochs=1)
    positions = [
        mw.checkpoints.open_source(path).extra for path in sorted((tmp_path / "checkpoints").glob("step_*"))
    ]
    assert "'count': 2" in str(positions[-1])
    assert str(positions[-1]).count("'fingerprint'") == 2


@pytest.mark.slow
def test_older_calls_return_at_once_too_and_the_last_one_goes_on(tmp_path, few_kept):
    def six_calls(made, **options):
        for _ in range(6):
            fit(made, epochs=1, **options)
        return arrays(made)

    first = trainer(given=deployer(tmp_path, trackers=[at(14, crash)]))
    with pytest.raises(Crash):
        six_calls(first, save=mw.Save(when=1), logging=mw.Logging(every=1))
    assert six_calls(trainer(tmp_path)) == six_calls(trainer())


@pytest.mark.slow
def test_older_calls_with_other_examples_are_told(tmp_path, few_kept, monkeypatch):
    made = trainer(tmp_path)
    for _ in range(5):
        fit(made, epochs=1)
    again, said = trainer(tmp_path), []
    monkeypatch.setattr(again.deployer, "log_info", lambda info, *_: said.append(info))
    fit(again, OTHERS, epochs=1)
    fit(again, epochs=1)
    assert "call 2 of fit was finished before; it or an earlier call had other examples" in said[-1]


def test_the_last_call_trains_the_epochs_that_it_is_raised_by(tmp_path):
    fit(trainer(tmp_path), epochs=1)
    made, whole = trainer(tmp_path), trainer()
    fit(made, epochs=3)
    fit(whole, epochs=3)
    assert arrays(made) == arrays(whole)


def test_a_state_that_is_set_is_gone_on_from():
    made, other = trainer(), trainer()
    fit(made, epochs=1)
    fit(other, epochs=1)
    first = jax.tree.map(jnp.copy, made.state)
    fit(made, epochs=1)
    made.state = first
    fit(other, OTHERS, epochs=1)
    fit(made, OTHERS, epochs=1)
    assert arrays(made) == arrays(other)


def test_a_state_of_other_shapes_is_refused():
    made = trainer()
    other = jax.tree.map(lambda x: jnp.zeros((2, *x.shape), x.dtype), made.state)
    with pytest.raises(UsageError, match=r"the state does not fit this trainer: .*w"):
        made.state = other


def test_two_trainers_of_one_deployer_have_directories_of_their_own(tmp_path):
    shared = deployer(tmp_path)
    actor, critic = trainer(given=shared, name="actor"), trainer(given=shared, name="critic")
    fit(actor, epochs=1)
    fit(critic, OTHERS, epochs=1)
    assert [len(reports(tmp_path / name)) for name in ("actor", "critic")] == [1, 1]
    assert (actor.step, critic.step) == (3, 2)


def test_a_second_trainer_without_a_name_is_refused(tmp_path):
    shared = deployer(tmp_path)
    first, second = trainer(given=shared), trainer(given=shared)
    fit(first, epochs=1)
    with pytest.raises(UsageError, match=r"(?s)another Trainer of this Deployer trains in .*name='actor'"):
        fit(second, epochs=1)


@pytest.mark.parametrize("name", ["a/b", "..", "", "checkpoints"])
def test_a_name_that_is_no_folder_s_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="cannot be a folder's name"):
        trainer(tmp_path, name=name)


def test_evaluation_alone_is_that_of_a_fit():
    made = trainer()
    found = fit(made, evaluations=by_loss(), epochs=1)
    scores = made.evaluate(mw.Evaluation("loss", EXAMPLES, batch_size=16))
    assert {f"eval/{name}": score for name, score in scores.items()} == found
    assert made.step == 3


def test_a_run_directory_of_a_trainer_has_what_every_run_has(tmp_path):
    made = trainer(tmp_path)
    fit(made, evaluations=by_loss(), epochs=1)
    there = {path.name for path in tmp_path.iterdir()}
    assert {"report.html", "environment.json", "experiment.txt", "state.txt", "outcome.json", "logs"} <= there
    assert any(name.startswith("events.out.tfevents") for name in there)


def test_scores_that_get_no_better_end_a_fit():
    made = trainer(optimizer=optax.sgd(0.0))
    early = mw.Stop(early=mw.engine.early_stopping("eval/loss", "min", patience=2))
    fit(made, evaluations=by_loss(), epochs=20, stop=early)
    assert made.step == 9


def test_a_time_limit_ends_a_fit_and_it_can_be_continued(tmp_path):
    made = trainer(tmp_path)
    with pytest.raises(Interrupted, match="max_seconds is over"):
        fit(made, epochs=2000, logging=mw.Logging(every=1), stop=mw.Stop(max_seconds=0.2))
    assert 0 < made.step < 6000
    assert np.isfinite(np.asarray(made.params["w"])).all()


def test_after_a_divergence_the_call_goes_back_to_the_newest_checkpoint(tmp_path):
    def loss(params, batch):
        return (params["w"] ** 2).mean() * batch["scale"].mean()

    scale = {"x": EXAMPLES["x"][:16], "scale": np.ones(16, np.float32)}
    made = trainer(tmp_path, loss=loss)
    fit(made, scale, epochs=2)
    bad = scale | {"scale": np.full(16, np.nan, np.float32)}
    with pytest.raises(DivergedError):
        fit(made, bad, epochs=2, logging=mw.Logging(every=1))
    fit(made, scale, epochs=1)
    assert np.isfinite(np.asarray(made.params["w"])).all()
    assert made.step == 3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"stop": 3600}, r"Fit\.stop is 3600; it must be Stop"),
        ({"profile": (3,)}, "it must be Profile"),
        ({"watchdog": 60}, "it must be Watchdog or none"),
        ({"profile": mw.Profile((1,))}, r"writes to the run directory"),
    ],
)
def test_a_value_that_would_do_nothing_is_refused(wrong, says):
    with pytest.raises(UsageError, match=says):
        fit(trainer(), **wrong)


def test_settings_that_changed_are_told_where_nothing_is_left_to_train_too(tmp_path, monkeypatch):
    fit(trainer(tmp_path), epochs=1)
    again, said = trainer(tmp_path, optimizer=optax.adam(0.5)), []
    monkeypatch.setattr(again.deployer, "log_info", lambda info, *_: said.append(info))
    fit(again, epochs=1)
    assert any("settings differ" in line and "-0.1 → -0.5" in line for line in said)
    assert "asks for no more steps" in said[-1]
