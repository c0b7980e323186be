import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.base._collector import collector_paused


@pytest.fixture(autouse=True)
def collecting():
    assert gc.isenabled()
    yield
    gc.enable()


def test_the_collector_is_off_within_and_on_afterwards():
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error():
    with pytest.raises(ZeroDivisionError), collector_paused():
        1 / 0  # noqa: B018
    assert gc.isenabled()


def test_a_pause_within_a_pause_does_not_end_it():
    with collector_paused():
        with collector_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_when_the_last_of_several_threads_is_done():
    both_in, first_is_out = Barrier(2), Barrier(2)

    def first():
        with collector_paused():
            both_in.wait(60)
        first_is_out.wait(60)

    def last():
        with collector_paused():
            both_in.wait(60)
            first_is_out.wait(60)
            return gc.isenabled()

    with ThreadPoolExecutor(2) as threads:
        started = threads.submit(first)
        assert threads.submit(last).result() is False
        started.result()
    assert gc.isenabled()


def test_who_had_it_off_keeps_it_off():
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_it_is_paused_while_a_state_and_a_step_are_traced_and_not_in_training():
    during = []

    def init(key):
        during.append(("init", gc.isenabled()))
        return {"w": jnp.ones(3)}

    def loss(params, batch, key):
        during.append(("loss", gc.isenabled()))
        return (batch["x"] @ params["w"]).mean()

    layout = mw.Layout(mw.make_mesh("data=-1"))
    state = mw.training.init_state(init, optax.sgd(0.1), 0, layout)
    step = mw.make_step(loss, optax.sgd(0.1), layout)
    step(state, {"x": np.ones((8, 3), np.float32)})
    assert {name for name, _ in during} == {"init", "loss"}
    assert not any(is_on for _, is_on in during)
    assert gc.isenabled()
