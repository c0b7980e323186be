"""`Experiment` on loaders' batches, streams, mapped examples and examples of several lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from data.loaders import DataLoader, Iterator, MapDataset
from engine.experiment.runs import EXAMPLES, experiment, losses, measure
from meshwright.errors import ExamplesError, UsageError

LISTED = [{"x": x} for x in EXAMPLES["x"]]


def params(outcome):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(outcome.state)]


def batch(i):
    return {"x": EXAMPLES["x"][16 * (i % 4) : 16 * (i % 4) + 16]}


def stream(length=40):
    """Batches of 16 that know where they stand."""
    return Iterator(MapDataset([], length, batch))


INPUTS = {
    "DataLoader": lambda: mw.data.Batched(DataLoader(LISTED, 16)),
    "function": lambda: mw.data.Batched(lambda epoch: [batch(i) for i in range(4)]),
    "stream of batches": lambda: mw.data.Batched(stream()),
    "stream of examples": lambda: Iterator(MapDataset([], 640, lambda i: LISTED[i % 64])),
}


@pytest.fixture(scope="module")
def in_order(tmp_path_factory):
    run = tmp_path_factory.mktemp("in_order")
    outcome = mw.run(experiment(run, input=mw.Input(EXAMPLES, 16, shuffle=False)))
    return params(outcome), losses(run)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.daily(2)
def test_what_is_read_in_any_way_trains_alike_and_goes_on_to_the_bit(kind, tmp_path, in_order):
    for max_steps in (3, 7, 10):
        described = mw.Input(INPUTS[kind](), 16, shuffle=False)
        outcome = mw.run(experiment(tmp_path, input=described, max_steps=max_steps))
    assert params(outcome) == in_order[0]
    assert losses(tmp_path)[-1] == in_order[1][-1]


def test_a_stream_ends_the_run(tmp_path):
    assert mw.run(experiment(tmp_path, input=mw.Input(mw.data.Batched(stream(6)), 16))).step == 6


@pytest.mark.parametrize("examples", [mw.data.Batched(DataLoader(LISTED, 16)), lambda: iter(LISTED), LISTED])
@pytest.mark.daily(1)
def test_any_examples_can_be_evaluated_on(examples, tmp_path):
    evaluation = mw.Evaluation(measure, examples, when=10, batch_size=16)
    outcome = mw.run(experiment(tmp_path, evaluations={"all": evaluation}))
    expected = ((EXAMPLES["x"] @ np.asarray(outcome.state.params["w"])) ** 2).sum(-1).mean()
    assert outcome.scores["all/loss"] == pytest.approx(expected, rel=1e-5)


def of_16(length=4):
    return mw.data.Batched(lambda: (batch(i) for i in range(length)))


def test_an_evaluation_takes_the_batch_size_of_a_loader_that_has_one(tmp_path):
    evaluations = {"all": mw.Evaluation(measure, mw.data.Batched(DataLoader(LISTED, 16)))}
    outcome = mw.run(experiment(tmp_path, evaluations=evaluations))
    expected = ((EXAMPLES["x"] @ np.asarray(outcome.state.params["w"])) ** 2).sum(-1).mean()
    assert outcome.scores["all/loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("length", [0, 4])
def test_a_loader_of_other_batches_than_those_of_its_evaluation_is_refused_before_the_first_step(
    tmp_path, length
):
    said = "has 16 examples, and 256 were expected" if length else "there are no examples"
    evaluations = {"all": mw.Evaluation(measure, of_16(length), when=10)}
    with pytest.raises(ExamplesError, match=rf"^evaluations.all: .*{said}"):
        mw.run(experiment(tmp_path, evaluations=evaluations))
    assert not list(tmp_path.rglob("step_*"))


def test_a_trainers_loader_of_other_batches_is_refused_before_the_first_step(tmp_path):
    trainer = mw.Trainer(
        mw.Deployer(seed=0, workdir=tmp_path),
        params={"w": jnp.ones((4, 2))},
        loss=lambda params, batch: measure(params, batch)["loss"].mean(),
        optimizer=optax.sgd(0.01),
    )
    evaluations = {"test": mw.Evaluation("loss", of_16())}
    with pytest.raises(ExamplesError, match=r"^evaluation 'test': batch 0 of the loader has 16 examples"):
        trainer.fit(EXAMPLES, batch_size=32, epochs=1, evaluations=evaluations)
    assert not list(tmp_path.rglob("step_*"))


def test_a_loader_of_a_single_small_batch_can_be_evaluated_on(tmp_path):
    outcome = mw.run(experiment(tmp_path, evaluations={"all": mw.Evaluation(measure, of_16(1))}))
    assert outcome.scores["all/loss"] > 0


def test_a_loader_that_is_given_as_examples_is_refused_before_the_run_begins(tmp_path):
    with pytest.raises(ExamplesError, match=r"input: the items .*\n\s+Wrap it, mw.data.Batched\(loader\)"):
        mw.run(experiment(tmp_path, input=mw.Input(MapDataset([], 64, LISTED.__getitem__).batch(16), 16)))


def test_a_generator_of_batches_that_is_given_as_examples_is_told_of_batched(tmp_path):
    with pytest.raises(UsageError, match=r"yields batches, wrap it: mw.data.Batched\(loader\)"):
        mw.run(experiment(tmp_path, input=mw.Input(lambda: iter([batch(0)]), 16, epochs=1)))


def test_what_is_drawn_follows_the_seed_of_the_experiment(tmp_path):
    seen = set()

    def watched(example, rng):
        seen.add(rng.random())
        return example

    described = mw.Input(mw.data.mapped(watched, LISTED), 16, shuffle=False)
    mw.run(experiment(tmp_path, input=described, max_steps=8, seed=5))
    expected = {np.random.default_rng([5, epoch, i]).random() for epoch in (0, 1) for i in range(64)}
    assert expected <= seen


LENGTHS = np.random.default_rng(1).integers(1, 9, 50).tolist()
TEXTS = [{"tokens": np.arange(n, dtype=np.float32) / 8, "mask": np.ones(n, np.float32)} for n in LENGTHS]


def text_measure(params, batch):
    errors = batch["mask"] * (params["w"] * batch["tokens"] - 1) ** 2
    return {"errors": errors.sum(-1)}


def text_loss(params, batch, key):
    return text_measure(params, batch)["errors"].mean()


def reading(run, **more):
    examples = mw.data.Bucketed(TEXTS, LENGTHS, (2, 4, 8), pad={"tokens": 0, "mask": 0})
    described = {
        "model": lambda key: {"w": jnp.float32(0.5)},
        "loss": text_loss,
        "optimizer": optax.sgd(0.01),
        "input": mw.Input(examples, 8),
        "evaluations": {"all": mw.Evaluation(text_measure, examples, when=100, batch_size=8)},
    }
    return experiment(run, **described | more)


@pytest.mark.slow
def test_examples_of_several_lengths_train_and_go_on_to_the_bit(tmp_path, caplog):
    whole = mw.run(reading(tmp_path / "whole"))
    for max_steps in (3, 10):
        outcome = mw.run(reading(tmp_path / "stopped", max_steps=max_steps))
    assert params(outcome) == params(whole)
    w = float(whole.state.params["w"])
    exact = np.mean([np.sum((w * text["tokens"] - 1) ** 2) for text in TEXTS])
    assert whole.scores["all/errors"] == pytest.approx(exact, rel=1e-5)
    assert not [record for record in caplog.records if "compiled again" in record.getMessage()]


def test_all_shapes_are_compiled_for_before_the_first_step(tmp_path, capsys):
    mw.run(reading(tmp_path))
    assert "step compiled for 3 shapes" in capsys.readouterr().err


def test_the_shapes_of_a_loader_can_be_told(tmp_path, capsys, caplog):
    padded = [{"x": np.ones((16, n), np.float32)} for n in (2, 4)]
    described = {
        "model": lambda key: {"w": jnp.float32(1)},
        "loss": lambda params, batch, key: (params["w"] * batch["x"]).mean(),
    }
    told, untold = mw.data.Batched(padded, shapes=padded[1:]), mw.data.Batched(padded)
    mw.run(experiment(tmp_path / "told", input=mw.Input(told, 16), **described))
    assert "step compiled for 2 shapes" in capsys.readouterr().err
    assert "compiled again" not in caplog.text
    mw.run(experiment(tmp_path / "untold", input=mw.Input(untold, 16), **described))
    assert caplog.text.count("compiled again") == 1
    assert "where x was float32[16, 2], is float32[16, 4]" in " ".join(capsys.readouterr().err.split())


def test_a_shape_that_was_not_told_can_end_the_run(tmp_path):
    padded = [{"x": np.ones((16, n), np.float32)} for n in (2, 4)]
    described = {
        "model": lambda key: {"w": jnp.float32(1)},
        "loss": lambda params, batch, key: (params["w"] * batch["x"]).mean(),
        "compile": mw.Compile(late="refuse"),
    }
    with pytest.raises(UsageError, match=r"x was float32\[16, 2\], is float32\[16, 4\]"):
        mw.run(experiment(tmp_path, input=mw.Input(mw.data.Batched(padded), 16), **described))


def test_the_description_shows_how_examples_are_read(tmp_path):
    shown = mw.engine.describe(reading(tmp_path))
    assert "buckets" in shown
    shown = mw.engine.describe(
        experiment(tmp_path, input=mw.Input(mw.data.mapped(lambda x, rng: x, LISTED), 16))
    )
    assert len(shown.splitlines()) < 100
