import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import meshwright as mw
from engine.adapters.models import LinenMlp, NnxMlp
from meshwright.errors import ExamplesError, UsageError

MESHES = ("data=-1", "fsdp=8", "data=2,tensor=4", "data=2,fsdp=2,tensor=2")
ROWS = np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=(16, 64)).astype(np.float32)


def deployer(mesh="data=2,fsdp=2,tensor=2"):
    return mw.Deployer(seed=0, mesh=mesh, verbose=False)


def times(params, batch):
    return {"x": batch["x"] @ params["w"], "first": batch["x"][:, 0]}


@pytest.fixture(scope="module")
def doubling():
    return mw.Predictor(deployer(), predict=lambda params, batch: batch * params)


@pytest.mark.parametrize("num_examples", [0, 1, 3, 7, 8, 9, 33, 64])
@pytest.mark.parametrize("per_device_batch_size", [1, 2, 3, 5])
def test_every_example_has_its_prediction_in_order(doubling, num_examples, per_device_batch_size):
    found = doubling.predict(list(range(num_examples)), per_device_batch_size, 2)
    assert found == [2 * i for i in range(num_examples)]


EXAMPLES = {
    "a list": list(range(10)),
    "a range": range(10),
    "an array": np.arange(10),
    "a generator": (i for i in range(10)),
    "a set": set(range(10)),
    "a function": lambda: iter(range(10)),
    "a function of the epoch": lambda epoch: range(epoch, 10),
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_examples_may_be_anything_that_can_be_read_once(doubling, kind):
    assert doubling.predict(EXAMPLES[kind], 1, 2) == [2 * i for i in range(10)]


NONE = {"list": [], "arrays": {"x": np.zeros((0, 3))}, "iterator": iter(()), "function": lambda: iter(())}


@pytest.mark.parametrize("none", NONE.values(), ids=NONE)
def test_of_no_examples_there_are_no_predictions(doubling, none):
    assert doubling.predict(none, 1, 2) == []


def test_what_cannot_be_read_is_refused(doubling):
    with pytest.raises(ExamplesError, match="examples must have __len__ and __getitem__; int does not"):
        doubling.predict(3, 1, 2)


@pytest.mark.parametrize("mesh", MESHES)
def test_predictions_are_those_of_one_device(mesh):
    predictor = mw.Predictor(deployer(mesh), predict=times)
    found = predictor.predict({"x": ROWS}, 2, {"w": WEIGHTS})
    np.testing.assert_allclose([row["x"] for row in found], ROWS @ WEIGHTS, rtol=1e-5, atol=1e-5)
    assert [row["first"] for row in found] == ROWS[:, 0].tolist()


def given(sort):
    mesh, other = deployer().mesh, mw.make_mesh("data=-1")
    shardings = {
        "one device": jax.sharding.SingleDeviceSharding(jax.devices()[3]),
        "on the mesh": jax.NamedSharding(mesh, P(None, "fsdp")),
        "whole on its devices": jax.NamedSharding(other, P()),
        "on another mesh": jax.NamedSharding(other, P("data")),
    }
    return jax.device_put(WEIGHTS, shardings[sort]) if sort in shardings else WEIGHTS.copy()


def alive():
    return sum(x.shape == WEIGHTS.shape for x in jax.live_arrays())


COPIES = {"numpy": 1, "one device": 1, "on the mesh": 0, "whole on its devices": 0, "on another mesh": 1}


@pytest.mark.parametrize("sort", COPIES)
def test_parameters_of_any_sort_stay_the_callers(sort):
    predictor, weights = mw.Predictor(deployer(), predict=times), given(sort)
    for _ in range(2):
        found = predictor.predict({"x": ROWS}, 2, {"w": weights})
    np.testing.assert_allclose([row["x"] for row in found], ROWS @ WEIGHTS, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(weights, WEIGHTS)


@pytest.mark.parametrize("sort", COPIES)
def test_parameters_are_copied_only_if_they_are_not_on_the_mesh(sort):
    seen = []
    output = lambda prediction: seen.append(alive()) or prediction["first"]
    predictor = mw.Predictor(deployer(), predict=times, output=output)
    params = {"w": given(sort), "elsewhere": np.ones(3)}  # what is copied has the others left alone
    before = alive()
    predictor.predict({"x": ROWS[:8]}, 2, params)
    assert seen == [before + COPIES[sort]]


def test_each_device_computes_its_share():
    seen = []

    def predict(batch):
        jax.debug.inspect_array_sharding(
            batch["x"] + 1, callback=lambda s: seen.append(s.shard_shape((8, 16)))
        )
        return batch["x"]

    mw.Predictor(deployer("data=4,tensor=2"), predict=predict).predict({"x": ROWS[:8]}, 2, {})
    assert seen == [(2, 16)]


def test_models_may_constrain_arrays_by_the_names_of_axes():
    predict = lambda batch: jax.lax.with_sharding_constraint(batch["x"], P("data", "tensor"))
    found = mw.Predictor(deployer(), predict=predict).predict({"x": ROWS}, 2, {})
    np.testing.assert_array_equal(found, ROWS)


def test_repeated_calls_compile_once():
    traced = []
    predict = lambda params, batch: traced.append(1) or batch * params
    predictor = mw.Predictor(deployer(), predict=predict)
    for scale in (2, 3):
        for examples in (range(5), range(99)):
            assert predictor.predict(examples, 2, np.int32(scale)) == [scale * i for i in examples]
    assert traced == [1]


def test_evaluation_after_each_epoch_compiles_once_and_is_of_the_newest_parameters():
    traced, seen, run = [], [], deployer()
    predict = lambda params, batch: traced.append(1) or batch["x"] @ params["w"]
    predictor = mw.Predictor(run, predict=predict)
    loss = lambda params, batch: (batch["x"] @ params["w"]).mean()
    trainer = mw.Trainer(run, loss=loss, optimizer=optax.sgd(0.1), params={"w": WEIGHTS})
    note = lambda preds: seen.append(preds) or {}
    evaluation = mw.Evaluation("loss", {"x": ROWS}, predict=predictor, metric_fn=note)
    trainer.fit({"x": ROWS}, 2, 3, evaluations={"test": evaluation})
    assert (traced, len(seen)) == ([1], 4)  # the first is to find mistakes before training
    np.testing.assert_array_equal(seen[-1], predictor.predict({"x": ROWS}, 2, trainer.params))


def test_output_sees_real_examples_only():
    seen = []
    output = lambda prediction: seen.append(prediction) or prediction.tolist()
    predictor = mw.Predictor(deployer(), predict=lambda batch: batch, output=output)
    assert predictor.predict(list(range(19)), 2, {}) == list(range(19))
    assert [len(each) for each in seen] == [8, 8, 3]
    assert all(isinstance(each, np.ndarray) for each in seen)


@pytest.mark.parametrize("num_outputs", [2, 4])
def test_another_number_of_outputs_than_examples_is_refused(num_outputs):
    predictor = mw.Predictor(
        deployer(), predict=lambda batch: batch, output=lambda _: iter(range(num_outputs))
    )
    with pytest.raises(UsageError, match=f"`output` returned {num_outputs} outputs for 3 examples"):
        predictor.predict([1, 2, 3], 1, {})


def test_an_output_that_returns_nothing_is_told_so():
    predictor = mw.Predictor(deployer(), predict=lambda batch: batch, output=lambda rows: None)
    with pytest.raises(UsageError, match=r"`output` returned None for 3 examples.\n.* one output for each"):
        predictor.predict([1, 2, 3], 1, {})


@pytest.mark.parametrize(
    ("predict", "problem"),
    [
        (lambda batch: batch.sum(), r"the returned array has shape \(\)"),
        (lambda batch: {"a": batch, "b": batch[:2]}, r"b has shape \(2,\)"),
        (lambda batch: {"n": 1.0, "t": batch[None]}, r"n has shape \(\), t has shape \(1, 8\)"),
        (lambda batch: {}, "it has no arrays"),
    ],
)
def test_predictions_need_a_row_for_each_example(predict, problem):
    with pytest.raises(UsageError, match=f"a row for each of the 8 examples of a batch: {problem}"):
        mw.Predictor(deployer(), predict=predict).predict([1, 2, 3], 2, {})


def test_a_batch_of_nothing_is_refused(doubling):
    with pytest.raises(UsageError, match="per_device_batch_size=0: it must be at least 1"):
        doubling.predict([1], 0, 2)


def test_a_prediction_that_asks_for_what_there_is_not_is_refused():
    with pytest.raises(UsageError, match="'model', which is not available"):
        mw.Predictor(deployer(), predict=lambda model, batch: model(batch))


def centred(params, x, model_state, train):
    return (x - model_state["mean"]) * params["w"], {"mean": x.mean() if train else model_state["mean"]}


def initial(key):
    return mw.training.Variables({"w": jnp.ones(())}, {"mean": jnp.zeros(())})


def test_a_model_with_a_state_predicts_with_the_state_given():
    predictor = mw.Predictor(deployer(), predict=lambda model, batch: model(batch), model=(initial, centred))
    found = predictor.predict(ROWS[:, 0], 2, {"w": np.float32(2)}, model_state={"mean": np.float32(1)})
    np.testing.assert_array_equal(found, 2 * (ROWS[:, 0] - 1))


def test_a_model_with_a_state_asks_for_it():
    predictor = mw.Predictor(deployer(), predict=lambda model, batch: model(batch), model=(initial, centred))
    with pytest.raises(UsageError, match="this model has a state besides its parameters, but no model_state"):
        predictor.predict(ROWS[:, 0], 2, {"w": np.float32(2)})


@pytest.mark.slow
def test_parameters_in_another_wrapping_are_told_what_to_give():
    run, rows = deployer(), {"x": ROWS[:, :4]}
    called = lambda model, batch: model(batch["x"])
    predictor = mw.Predictor(run, predict=called, model=NnxMlp)
    trainer = mw.Trainer(run, model=NnxMlp, loss=lambda model, batch: 0.0, optimizer=optax.sgd(0.1))
    with pytest.raises(UsageError, match=r"Give its entry `params`: trainer\.params"):
        predictor.predict(rows, 2, trainer.state)
    module = NnxMlp(rngs=nnx.Rngs(0))
    with pytest.raises(UsageError, match=r"give plain arrays: (nnx\.\S*)\.") as raised:
        predictor.predict(rows, 2, module)
    advice = re.search(r"arrays: (.*)\.$", str(raised.value))[1]
    assert len(predictor.predict(rows, 2, eval(advice))) == 50
    linen, variables = LinenMlp(), LinenMlp().init(jax.random.key(0), ROWS[:1, :4])
    predictor = mw.Predictor(run, predict=called, model=mw.functional(linen, ROWS[:1, :4]))
    with pytest.raises(UsageError, match=r"variables\['params'\]"):
        predictor.predict(rows, 2, variables)


def test_randomness_differs_between_batches_and_not_between_calls():
    draw = lambda batch, key: jax.random.normal(key, batch.shape)
    predictor = mw.Predictor(deployer(), predict=draw)
    first, second = (predictor.predict(range(32), 2, {}) for _ in range(2))
    assert first == second
    assert len(set(first)) == 32


def test_another_seed_draws_anew_and_compiles_nothing():
    traced = []
    draw = lambda batch, key: traced.append(1) or jax.random.normal(key, batch.shape)
    predictor = mw.Predictor(deployer(), predict=draw)
    first, again, second = (predictor.predict(range(32), 2, {}, seed=seed) for seed in (None, 0, 1))
    assert first == again  # the deployer's
    assert not {*first} & {*second}
    of_another_run = mw.Predictor(mw.Deployer(1, mesh="data=8", verbose=False), predict=draw)
    assert of_another_run.predict(range(32), 1, {})[:8] == second[:8]
    assert len(traced) == 2
    with pytest.raises(UsageError, match="seed=-1: it must be a whole number from 0"):
        predictor.predict(range(32), 2, {}, seed=-1)


def test_the_order_is_that_of_redco_and_another_is_refused():
    predictor = mw.Predictor(deployer(), predict=lambda params, batch: batch["x"] @ params["w"])
    np.testing.assert_allclose(predictor.predict({"x": ROWS}, 2, {"w": WEIGHTS}), ROWS @ WEIGHTS, rtol=1e-4)
    with pytest.raises(
        UsageError, match=r"found a value of type dict.\n  The order is predict\(examples, per_device"
    ):
        predictor.predict({"x": ROWS}, {"w": WEIGHTS}, 2)


def test_functions_may_take_things_out_of_the_batch():
    def loss(params, batch):
        return ((batch.pop("x") @ params["w"] - batch.pop("y")[:, None]) ** 2).mean()

    run, data = deployer(), {"x": ROWS, "y": ROWS[:, 0]}
    predictor = mw.Predictor(run, predict=lambda params, batch: batch.pop("y") + batch.pop("x")[:, 0])
    assert len(predictor.predict(data, 2, {"w": WEIGHTS})) == 50
    trainer = mw.Trainer(run, loss=loss, optimizer=optax.sgd(0.1), params={"w": WEIGHTS})
    mean = lambda preds: {"mean": float(np.mean(preds))}
    scores = trainer.evaluate(mw.Evaluation("loss", data, predict=predictor, metric_fn=mean))
    assert scores.keys() == {"loss", "mean"}
    trainer.fit(data, 2, 1)


def test_few_batches_are_in_flight():
    read, most = [], []
    collate = lambda examples: read.append(1) or {"id": np.asarray(examples)}
    output = lambda prediction: most.append(len(read) - len(most)) or prediction
    predictor = mw.Predictor(deployer(), predict=lambda batch: batch["id"], collate=collate, output=output)
    assert len(predictor.predict(range(800), 2, {})) == 800
    assert max(most) <= 10  # of 100: some read ahead, some computing


class Telling(mw.Deployer):
    """Remembers what progress it is asked to show, instead of showing it."""

    def progress(self, items, total, desc):
        taken = list(items)
        self.told = desc, total, len(taken)
        return iter(taken)


TOTALS = {"a list": list(range(19)), "arrays": {"id": np.arange(19)}, "an iterator": iter(range(19))}


@pytest.mark.parametrize("kind", TOTALS)
def test_progress_is_counted_in_batches(kind):
    run = Telling(seed=0, mesh="data=8", verbose=False)
    predictor = mw.Predictor(run, predict=lambda batch: batch)
    assert len(predictor.predict(TOTALS[kind], 1, {}, desc="Labels")) == 19
    assert run.told == ("Labels", None if kind == "an iterator" else 3, 3)
