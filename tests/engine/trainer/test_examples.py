"""What `fit` may be given to train on."""

import numpy as np
import pytest

import meshwright as mw
from engine.trainer.runs import EXAMPLES, arrays, by_loss, exact_loss, fit, reports, trainer
from meshwright.errors import ExamplesError

LISTED = [{"x": x, "y": y} for x, y in zip(EXAMPLES["x"], EXAMPLES["y"], strict=True)]


class Indexed:
    """As data sets of grain and others are: no list, but with a length and an index."""

    def __len__(self):
        return len(LISTED)

    def __getitem__(self, index):
        return LISTED[index]


class Columns(Indexed):
    """As data sets of Hugging Face are: examples by number, columns by name, and a part by `select`."""

    def __getitem__(self, index):
        return EXAMPLES[index] if isinstance(index, str) else LISTED[index]

    def select(self, numbers):
        return {name: column[: len(numbers)] for name, column in EXAMPLES.items()}


@pytest.mark.parametrize(
    "examples",
    [LISTED, Indexed(), mw.data.Arrays(EXAMPLES), lambda epoch: EXAMPLES, lambda epoch: LISTED],
    ids=["list", "indexed", "arrays", "mapping of the epoch", "list of the epoch"],
)
@pytest.mark.daily(2)
def test_what_can_be_indexed_is_read_in_one_order_whatever_it_is(examples):
    expected, found = trainer(), trainer()
    fit(expected)
    fit(found, examples)
    assert arrays(found) == arrays(expected)


def test_an_iterator_factory_is_called_for_each_epoch_and_read_in_its_order():
    calls = []

    def examples():
        calls.append(len(calls))
        return iter(LISTED)

    found, expected = trainer(), trainer()
    scores = fit(found, examples, evaluations=by_loss(lambda: iter(LISTED)))
    fit(expected, shuffle=False)
    assert arrays(found) == arrays(expected)
    assert (found.step, len(calls)) == (6, 2)
    assert scores["eval/loss"] == pytest.approx(exact_loss(found.params), rel=1e-6)


def test_a_function_of_the_epoch_is_asked_for_the_epochs_there_are():
    asked = []

    def examples(epoch):
        asked.append(epoch)
        return LISTED[: 16 * (epoch + 1)]

    made = trainer()
    fit(made, examples, epochs=3)
    assert asked == [0, 1, 2]
    assert made.step == 1 + 2 + 3


def test_max_steps_ends_a_run_of_unknown_length():
    made = trainer()
    fit(made, lambda: iter(LISTED), epochs=None, max_steps=7)
    assert made.step == 7


def test_evaluation_after_each_epoch_needs_no_length(tmp_path):
    fit(trainer(tmp_path), lambda epoch: iter(LISTED[17 * epoch :]), epochs=3, evaluations=by_loss(LISTED))
    assert [step for step, _ in reports(tmp_path, "eval/loss")] == [3, 5, 6]


def test_a_collate_function_makes_batches_for_training_and_evaluation():
    def collate(examples):
        return {"x": np.stack([x for x, _ in examples]), "y": np.array([y for _, y in examples])}

    pairs = list(zip(EXAMPLES["x"], EXAMPLES["y"], strict=True))
    found, expected = trainer(collate=collate), trainer()
    assert fit(found, pairs, evaluations=by_loss(pairs)) == fit(expected, evaluations=by_loss())
    assert arrays(found) == arrays(expected)


@pytest.mark.parametrize(
    ("sizes", "says", "steps"),
    [
        ((15,), "epoch 0 has too few examples to fill one batch of 16", 0),
        ((16, 32, 10), "epoch 2 has too few examples to fill one batch of 16", 3),
    ],
)
def test_an_epoch_that_fills_no_batch_is_told(sizes, says, steps):
    made = trainer()
    with pytest.raises(ExamplesError, match=says):
        fit(made, lambda epoch: LISTED[: sizes[epoch]], epochs=3)
    assert made.step == steps


def test_progress_knows_how_many_steps_are_left(capsys):
    made = trainer(given=mw.Deployer(0))
    fit(made, epochs=3, max_steps=5, logging=mw.Logging(every=5))
    fit(trainer(given=mw.Deployer(0)), lambda: iter(LISTED), epochs=1, logging=mw.Logging(every=3))
    shown = capsys.readouterr().err
    assert " step=5/5 loss=" in shown
    assert " step=3 loss=" in shown


def test_a_metric_sees_the_columns_of_a_data_set():
    def metric(examples, preds):
        return {"correlation": np.corrcoef(examples["y"], preds)[0, 1], "num_examples": len(preds)}

    made = trainer()
    predictor = mw.Predictor(made.deployer, model=made.model, predict=lambda model, batch: model(batch["x"]))
    scores = fit(made, evaluations=by_loss(Columns(), predict=predictor, metric_fn=metric))
    expected = np.corrcoef(EXAMPLES["x"] @ np.asarray(made.params["w"]), EXAMPLES["y"])[0, 1]
    assert scores["eval/correlation"] == pytest.approx(expected, rel=1e-5)
    assert scores["eval/num_examples"] == 50


def test_a_metric_over_an_iterators_examples_is_given_a_list_of_them():
    made = trainer()
    predictor = mw.Predictor(made.deployer, model=made.model, predict=lambda model, batch: batch["y"])
    metric = lambda examples, preds: {"equal": float([x["y"] for x in examples] == preds)}
    scores = fit(made, evaluations=by_loss(lambda: iter(LISTED), predict=predictor, metric_fn=metric))
    assert scores["eval/equal"] == 1.0
