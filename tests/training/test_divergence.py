"""A state that is not finite is refused where it would be saved."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import DivergedError

LAYOUT = mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), (mw.parallel.match("w", "fsdp", "tensor"),))
ADAM = optax.chain(optax.adam(0.1), mw.training.keep_ema(0.9))


def state_of(tx=ADAM, model_state=None, **params):
    made = {"w": np.ones((8, 4), np.float32), "b": np.ones(4, np.float32)} | params
    return mw.training.state_from(mw.training.Variables(made, model_state), tx, 0, LAYOUT)


def check(tx, state, newest=2):
    mw.training.check_finite(tx, lambda: newest)(4, state)


def spoilt(state, name, value=np.nan):
    """Return `state` with one element of one array not finite."""
    return mw.base._internal.map_named(lambda n, x: x.at[(0,) * x.ndim].set(value) if n == name else x, state)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("name", ["params/w", "opt_state/0/0/mu/w", "opt_state/1/ema/b"])
def test_a_trained_parameter_and_what_is_kept_beside_it_must_be_finite(name, value):
    state = state_of()
    check(ADAM, state)
    with pytest.raises(
        DivergedError, match=rf"after step 4 is not finite: {name}; (.|\n)*checkpoint: step 2"
    ):
        check(ADAM, spoilt(state, name, value))


def test_complex_and_narrow_parameters_must_be_finite_too():
    tx = optax.sgd(0.1)
    state = state_of(tx, c=np.ones(3, np.complex64), h=jnp.ones(3, jnp.bfloat16))
    check(tx, state)
    for name, value in {"params/c": 1j * np.inf, "params/h": np.inf}.items():
        with pytest.raises(DivergedError, match=f"not finite: {name};"):
            check(tx, spoilt(state, name, value))


def test_what_is_frozen_or_of_the_model_or_a_number_of_the_optimizer_may_be_infinite():
    mask = np.full((4, 4), -np.inf, np.float32)
    tx = mw.training.Trainable("w|b", optax.chain(optax.adam(0.1), optax.contrib.reduce_on_plateau()))
    state = state_of(tx, {"low": jnp.full(4, jnp.inf)}, mask=mask)
    assert not all(jnp.isfinite(x).all() for x in jax.tree.leaves(state.opt_state))
    check(tx, state)


def test_factors_are_judged_and_state_in_the_memory_of_the_host_is():
    tx = mw.training.offload_opt_state(optax.adafactor(0.1, min_dim_size_to_factor=2))
    state = state_of(tx)
    check(tx, state)
    name = next(name for name in mw.parallel.leaf_names(state) if name.endswith("v_row/w"))
    with pytest.raises(DivergedError, match=name):
        check(tx, spoilt(state, name))


def test_a_checkpoint_that_is_not_finite_itself_is_to_be_taken_away():
    with pytest.raises(DivergedError, match="delete the checkpoint"):
        check(ADAM, spoilt(state_of(), "params/w"), newest=4)


def test_a_loop_of_ones_own_saves_no_state_that_is_not_finite(tmp_path):
    """A gradient that is not finite, of a loss that is, in the step that is saved."""
    tx = optax.sgd(0.1)

    def loss(params, batch, key):
        return jnp.sqrt(params["w"].sum() * batch["x"].mean()) + params["b"].sum()

    batches = iter([{"x": np.full(8, x, np.float32)} for x in (1, 1, 1, 0, 1, 1)])
    with mw.Checkpoints(tmp_path) as checkpoints:
        checkpoints.check_state = mw.training.check_finite(tx, checkpoints.wait_quietly)
        step, save = mw.make_step(loss, tx, LAYOUT), checkpoints.saver(mw.engine.every(2))
        with pytest.raises(DivergedError, match=r"step 4 is not finite: params/w;(.|\n)*checkpoint: step 2"):
            mw.fit(step, state_of(tx), batches, max_steps=6, save=save)
        assert checkpoints.latest() == 2


def test_a_failed_save_is_logged_and_not_named_as_the_newest(tmp_path, caplog):
    with mw.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": np.ones(2)})
        checkpoints.wait()

        def full():
            raise OSError("no space left")

        checkpoints.before_commit = full
        checkpoints.save(2, {"x": np.ones(2)})
        assert checkpoints.wait_quietly() == 1
    assert "the save of step 2 failed" in caplog.text
