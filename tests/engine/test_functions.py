"""What users' functions are given, and what they are told when they ask for something else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.adapters import models
from meshwright.engine._adapters._bound import Bound
from meshwright.engine._adapters._functional import functional
from meshwright.engine._functions import loss_of, prediction_of, step_of
from meshwright.errors import UsageError

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
PAIR = functional((models.init, models.apply))


def bound(model, *, train, key=KEY):
    made = model.init(KEY)
    params, state = (made.params, made.model_state) if model.stateful else (made, None)
    return Bound(model, params, state, key, train)


def test_a_model_of_one_example_is_called_with_a_batch():
    model = functional(models.EquinoxMlp)
    expected = jnp.stack([model.apply(model.init(KEY), x) for x in X])
    np.testing.assert_allclose(bound(model, train=False)(X), expected, rtol=1e-6)


def test_each_example_and_each_call_has_randomness_of_its_own():
    model = bound(functional(models.EquinoxNorm), train=True)
    masks = np.concatenate([model(X) == 0, model(X) == 0])
    assert len(np.unique(masks, axis=0)) > 5


@pytest.mark.parametrize("library", ["nnx", "linen", "equinox"])
def test_a_model_with_a_state_moves_it_in_training_and_not_in_evaluation(library):
    made = {"nnx": models.NnxNorm, "equinox": models.EquinoxNorm, "linen": models.LinenNorm()}[library]
    model = functional(made, *([models.INPUTS] if library == "linen" else []))
    first = jax.tree.leaves(model.init(KEY).model_state)
    for train in (True, False):
        called = bound(model, train=train)
        called(X)
        now = jax.tree.leaves(called.model_state)
        assert any((a != b).any() for a, b in zip(first, now, strict=True)) == train


def test_a_loss_of_a_model_with_a_state_need_not_mention_it():
    model = functional(models.NnxNorm)
    made = model.init(KEY)
    loss = loss_of(lambda model, batch: model(batch).mean(), model, train=True, has_state=True)
    value, metrics, state = loss(made.params, X, KEY, made.model_state)
    assert (jnp.shape(value), metrics) == ((), {})
    assert jax.tree.structure(state) == jax.tree.structure(made.model_state)


@pytest.mark.parametrize(
    ("loss", "model", "says"),
    [
        (lambda batch: 0.0, PAIR, "does not take 'model' or 'params', as a loss must"),
        (lambda batch: 0.0, None, "does not take 'params'"),
        (lambda params: 0.0, PAIR, "does not take 'batch'"),
        (lambda model, batch: 0.0, None, "asks for 'model', which is not available"),
        (lambda state, params, batch: 0.0, PAIR, "asks for 'state', which is not available"),
        (lambda params, batch, model_state: 0.0, PAIR, "asks for 'model_state', which is not available"),
        (lambda params, batch, rngs: 0.0, PAIR, "asks for 'rngs'.* Did you mean 'key'"),
    ],
)
def test_a_loss_of_another_signature_is_told_so(loss, model, says):
    with pytest.raises(UsageError, match=says):
        loss_of(loss, model, train=True, has_state=False)


def test_predictions_and_steps_of_another_signature_are_told_so():
    with pytest.raises(UsageError, match=r"(?s)the prediction .* asks for 'train'"):
        prediction_of(lambda model, batch, train: 0, PAIR)
    with pytest.raises(UsageError, match=r"(?s)the train step .* asks for 'optimizer'"):
        step_of(lambda state, batch, optimizer: 0)
