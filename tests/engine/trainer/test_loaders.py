"""`Trainer.fit` on loaders' batches, streams, mapped examples and examples of several lengths."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from data.loaders import DataLoader, Iterator, MapDataset
from engine.trainer.runs import EXAMPLES, arrays, by_loss, deployer, exact_loss, fit, reports, saved, trainer
from meshwright.errors import ExamplesError, UsageError

LISTED = [{"x": x, "y": y} for x, y in zip(EXAMPLES["x"], EXAMPLES["y"], strict=True)]


def batch(start, stop):
    return {name: x[start:stop] for name, x in EXAMPLES.items()}


def stream(repeats=4):
    """Batches of 16 that know where they stand: three for each of some epochs."""
    starts = [0, 16, 32] * repeats
    return Iterator(MapDataset([], len(starts), lambda i: batch(starts[i], starts[i] + 16)))


LOADERS = {
    "DataLoader": lambda: DataLoader(LISTED, 16),
    "function of the epoch": lambda: lambda epoch: DataLoader(LISTED, 16),
    "list": lambda: [batch(0, 16), batch(16, 32), batch(32, 48), batch(48, 50)],
}


@pytest.fixture(scope="module")
def in_order():
    made = trainer()
    fit(made, shuffle=False, epochs=4)
    return arrays(made)


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.daily(1)
def test_a_loaders_batches_train_as_the_same_examples_do(kind, in_order):
    made = trainer()
    scores = fit(
        made,
        mw.data.Batched(LOADERS[kind]()),
        epochs=4,
        evaluations=by_loss(mw.data.Batched(LOADERS[kind]())),
    )
    assert arrays(made) == in_order
    assert scores["eval/loss"] == pytest.approx(exact_loss(made.params), rel=1e-6)


def test_a_stream_ends_the_run(in_order):
    made = trainer()
    fit(made, mw.data.Batched(stream()), epochs=None, max_steps=100)
    assert (made.step, arrays(made) == in_order) == (12, True)
    with pytest.raises(ExamplesError, match="can be read only once, but epochs=2"):
        fit(trainer(), mw.data.Batched(stream()), epochs=2)


@pytest.mark.parametrize("kind", ["stream", *LOADERS])
@pytest.mark.parametrize("stop", [2, 3, 7])
@pytest.mark.daily(2)
def test_a_run_on_batches_goes_on_in_the_middle_to_the_bit(kind, stop, tmp_path, in_order):
    options = {"epochs": None if kind == "stream" else 4, "save": mw.Save(when=2)}
    for max_steps in (stop, 12):
        made, loader = trainer(tmp_path), stream() if kind == "stream" else LOADERS[kind]()
        fit(made, mw.data.Batched(loader), max_steps=max_steps, **options)
    assert arrays(made) == in_order
    if kind == "stream":
        assert loader.num_read <= 12 - stop + 4  # nothing is read again, and few ahead


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_second_fit_goes_on_in_the_stream_also_where_a_process_begins_anew(is_killed, tmp_path, in_order):
    made, batches = trainer(tmp_path), mw.data.Batched(stream())
    fit(made, batches, epochs=None, max_steps=5)
    if is_killed:
        made, batches = trainer(tmp_path), mw.data.Batched(stream())
        fit(made, batches, epochs=None, max_steps=5)
    fit(made, batches, epochs=None, max_steps=7)
    assert arrays(made) == in_order


def test_a_loader_that_is_given_as_examples_is_refused_with_what_to_write():
    with pytest.raises(ExamplesError, match=r"Wrap it, mw.data.Batched\(loader\)"):
        fit(trainer(), DataLoader(LISTED, 16))


def test_a_generator_of_batches_is_told_of_batched():
    with pytest.raises(ExamplesError, match=r"batches already, wrap them: mw.data.Batched"):
        fit(trainer(), lambda: iter([batch(0, 16), batch(16, 32)]))


def test_a_metric_is_given_the_examples_of_a_loaders_batches():
    made = trainer()
    predictor = mw.Predictor(made.deployer, model=made.model, predict=lambda model, batch: batch["y"])
    metric = lambda examples, preds: {"equal": float([x["y"] for x in examples] == preds)}
    loader = mw.data.Batched(DataLoader(LISTED, 16))
    scores = fit(made, evaluations=by_loss(loader, predict=predictor, metric_fn=metric))
    assert scores["eval/equal"] == 1.0


def jittered(example, rng):
    return {**example, "x": example["x"] + rng.normal(size=4).astype(np.float32)}


@pytest.mark.slow
def test_what_is_drawn_for_examples_is_the_same_on_every_mesh_and_after_a_restart(tmp_path):
    one, other = trainer(), trainer(mesh="data=2,fsdp=4")
    for made in (one, other):
        fit(made, mw.data.mapped(jittered, LISTED))
    np.testing.assert_allclose(one.params["w"], other.params["w"], rtol=1e-5)
    for max_steps in (4, 6):
        again = trainer(tmp_path)
        fit(again, mw.data.mapped(jittered, LISTED), max_steps=max_steps, save=mw.Save(when=2))
    assert arrays(again) == arrays(one)


def test_each_epoch_draws_anew_by_the_seed_the_epoch_and_the_number():
    seen = []

    def watched(example, rng):
        seen.append((int(example["n"]), rng.random()))
        return example

    numbered = [{**x, "n": i} for i, x in enumerate(LISTED)]
    fit(trainer(), mw.data.mapped(watched, numbered), shuffle=False)
    expected = {(i, np.random.default_rng([0, epoch, i]).random()) for epoch in (0, 1) for i in range(48)}
    assert expected <= set(seen)


LENGTHS = np.random.default_rng(1).integers(1, 9, 50).tolist()
TEXTS = [{"tokens": np.arange(n, dtype=np.float32) / 8, "mask": np.ones(n, np.float32)} for n in LENGTHS]


def texts(buckets=(2, 4, 8)):
    return mw.data.Bucketed(TEXTS, LENGTHS, buckets, pad={"tokens": 5, "mask": 0})


def text_loss(params, batch):
    errors = (params["w"] * batch["tokens"] - 1) ** 2
    return mw.Mean.of(errors, batch["mask"])


def reader(workdir=None, mesh="data=-1", **options):
    given = {"params": {"w": jnp.float32(0.5)}, "loss": text_loss, "optimizer": optax.sgd(0.1)}
    return mw.Trainer(deployer(workdir, mesh), **given | options)


def test_examples_of_several_lengths_train_in_as_many_compiled_shapes(tmp_path, caplog):
    made = reader(tmp_path)
    scores = fit(made, texts(), evaluations=by_loss(texts()))
    assert made.step == 6
    w = float(made.params["w"])
    exact = [(w * x - 1) ** 2 for text in TEXTS for x in text["tokens"].tolist()]
    assert scores["eval/loss"] == pytest.approx(np.mean(exact), rel=1e-5)
    assert not [record for record in caplog.records if "compiled again" in record.getMessage()]
    assert not reports(tmp_path, "tflops_per_device")


def test_a_shape_that_was_not_told_can_end_the_fit():
    batches = mw.data.Batched([{"x": np.ones((8, n), np.float32)} for n in (4, 4, 6)])
    made = mw.Trainer(
        deployer(),
        params={"w": jnp.ones(())},
        loss=lambda params, batch: (params["w"] * batch["x"]).mean(),
        optimizer=optax.sgd(0.1),
        compile=mw.Compile(late="refuse"),
    )
    with pytest.raises(UsageError, match="a shape that the step is not compiled for"):
        made.fit(batches, batch_size=8, epochs=1)


def test_examples_of_several_lengths_are_predicted_in_their_order():
    predictor = mw.Predictor(deployer(), predict=lambda params, batch: batch["mask"].sum(-1))
    assert [int(x) for x in predictor.predict(texts(), 1, {})] == LENGTHS


def test_a_metric_over_several_lengths_sees_every_example():
    made = reader()
    predictor = mw.Predictor(made.deployer, predict=lambda params, batch: batch["mask"].sum(-1))
    metric = lambda examples, preds: {"equal": float([len(x["mask"]) for x in examples] == list(preds))}
    options = {"evaluations": by_loss(texts(), predict=predictor, metric_fn=metric)}
    assert fit(made, texts(), **options)["eval/equal"] == 1.0


def test_a_loaders_batches_are_predicted():
    predictor = mw.Predictor(deployer(), predict=lambda params, batch: batch["y"])
    found = predictor.predict(mw.data.Batched(DataLoader(LISTED, 16)), 2, {})
    assert np.array_equal(found, EXAMPLES["y"])


def test_padding_changes_nothing_but_what_is_computed():
    one, other = reader(), reader()
    fit(one, texts((8,)), shuffle=False)
    fit(other, [{k: np.pad(x, (0, 8 - len(x))) for k, x in text.items()} for text in TEXTS], shuffle=False)
    assert float(one.params["w"]) == pytest.approx(float(other.params["w"]), rel=1e-6)


@pytest.mark.parametrize("stop", [1, 4])
@pytest.mark.daily(1)
def test_a_run_on_several_lengths_goes_on_to_the_bit(stop, tmp_path):
    whole = reader()
    fit(whole, texts(), epochs=3)
    for max_steps in (stop, 9):
        made = reader(tmp_path)
        fit(made, texts(), epochs=3, max_steps=max_steps, save=mw.Save(when=2))
    assert arrays(made) == arrays(whole)
    assert saved(tmp_path)[-1] == 9
