"""`fit` with an optimizer that keeps an average of the parameters: it is what is evaluated."""

import numpy as np
import optax
import pytest

import meshwright as mw
from engine.trainer.runs import by_loss, exact_loss, fit, trainer


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """Two epochs, evaluated by the loss and by predictions."""
    made = trainer(
        tmp_path_factory.mktemp("run"), optimizer=optax.chain(optax.adam(0.1), mw.training.keep_ema(0.9))
    )
    predictor = mw.Predictor(made.deployer, model=made.model, predict=lambda model, batch: model(batch["x"]))
    metric = lambda examples, preds: {"error": np.mean((np.stack(preds) - examples["y"]) ** 2)}
    evaluated = {"evaluations": by_loss(predict=predictor, metric_fn=metric)}
    return made, fit(made, save=mw.Save(keep=mw.checkpoints.best("eval/error", "min")), **evaluated)


@pytest.mark.slow
def test_the_loss_and_the_predictions_evaluated_are_those_of_the_average(averaged):
    made, scores = averaged
    expected = exact_loss(mw.training.ema_params(made.state))
    assert expected != pytest.approx(exact_loss(made.params), rel=0.05)
    assert scores == {f"eval/{name}": pytest.approx(expected, rel=1e-5) for name in ("loss", "error")}


def test_the_best_parameters_are_the_average_that_was_evaluated(averaged):
    made, scores = averaged
    best = made.best("eval/error", "min")
    assert exact_loss(best.params) == pytest.approx(scores["eval/error"], rel=1e-5)
    assert best.model_state is None
