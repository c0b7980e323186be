import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import UsageError

LAYOUT = mw.Layout(mw.make_mesh("data=2,fsdp=4"), (mw.parallel.match("params/w", "fsdp"),))
BATCH = {"x": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)}
START = {name: np.ones((8, 4), np.float32) for name in ("w", "bias")}
COUNTS = {"w": np.zeros(3, np.float32), "bias": np.zeros(3, np.float32)}


def loss(params, batch, key, model_state):
    value = ((batch["x"] @ (params["w"] + params["bias"])) ** 2).mean()
    return value, {}, {name: x + 1 for name, x in model_state.items()}


def trained(tx, microbatches=2):
    state = mw.training.state_from(mw.training.Variables(START, COUNTS), tx, 0, LAYOUT)
    step = mw.make_step(loss, tx, LAYOUT, microbatches=microbatches)
    for _ in range(2):
        state, _ = step(state, BATCH)
    return state


@pytest.mark.parametrize("w", ["optimizer", "all"])
@pytest.mark.parametrize("bias", ["none", "optimizer", "state", "all"])
@pytest.mark.daily(4)
def test_what_a_rule_names_moves_and_nothing_else_by_a_bit(w, bias):
    state = trained(mw.training.update_rules([("bias", bias), ("w", w)], optax.adam(0.01)))
    for name, rule in {"w": w, "bias": bias}.items():
        moved = np.abs(state.params[name] - START[name])
        assert np.all(moved > 1e-3) if rule in ("optimizer", "all") else np.all(moved == 0)
        assert np.all(state.model_state[name] == (4 if rule in ("state", "all") else 0))


def test_the_optimizer_remembers_nothing_of_what_it_may_not_move():
    tx = mw.training.update_rules([("bias", "state")], optax.adam(0.01))
    state = mw.training.abstract_state(lambda key: mw.training.Variables(START, COUNTS), tx, LAYOUT)
    assert mw.parallel.leaf_names(state.opt_state[0].mu) == ["w"]


def test_the_first_rule_that_matches_stands_and_without_one_all_is_allowed():
    rules = [("params/w", "none"), ("w", "all"), ("bias", "optimizer")]
    state = trained(mw.training.update_rules(rules, optax.sgd(0.1)))
    assert np.all(state.params["w"] == 1)
    assert np.all(state.model_state["w"] == 4)
    assert np.all(state.model_state["bias"] == 0)
    assert np.all(trained(mw.training.update_rules([], optax.sgd(0.1))).model_state["bias"] == 4)


def test_a_rule_that_is_none_of_the_four_is_told():
    with pytest.raises(
        UsageError, match="unknown update rule 'frozen'; expected one of none, optimizer, state, all"
    ):
        mw.training.update_rules([("w", "frozen")], optax.sgd(0.1))
