"""Settings that a run chooses: `remat="auto"` and `microbatches="auto"`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.base import _description as description
from meshwright.errors import UsageError
from meshwright.lm._models import decoder
from meshwright.plan import _internal as plan

CFG = decoder.Config(vocabulary=64, model=32, layers=8, heads=2, feed_forward=64)
ROWS = {"tokens": np.random.default_rng(0).integers(0, 64, (64, 65))}


def experiment(directory, **more):
    given = {
        "workdir": str(directory),
        "mesh": "data=8",
        "model": functools.partial(decoder.init, CFG),
        "loss": lambda params, batch: decoder.loss(CFG, params, batch, remat="everything"),
        "optimizer": optax.sgd(0.1),
        "input": mw.Input(ROWS, batch_size=64),
        "max_steps": 2,
        "remat": "auto",
        "microbatches": "auto",
        "compile": mw.Compile(cache=False),
    }
    return mw.Experiment(**{**given, **more})


def chosen(directory):
    values = description.values((directory / "experiment.txt").read_text())
    return values["remat"], values["microbatches"]


@pytest.fixture
def memory(monkeypatch):
    """Sets the memory of each device."""

    def of(nbytes):
        from meshwright.plan import _choice

        def here(devices):
            found = plan.hardware_here(devices)
            return dataclasses.replace(found, chip=dataclasses.replace(found.chip, memory_bytes=nbytes))

        monkeypatch.setattr(_choice, "hardware_here", here)

    return of


@functools.cache
def peak(remat, microbatches):
    return mw.plan.compile_ahead(experiment("unused", remat=remat, microbatches=microbatches)).peak_bytes


@pytest.mark.slow
def test_with_memory_enough_nothing_is_computed_twice_and_the_batch_is_whole(tmp_path):
    mw.run(experiment(tmp_path))
    assert chosen(tmp_path) == ("None", "1")


@pytest.mark.slow
def test_with_less_memory_a_run_takes_settings_that_fit_and_writes_them_down(tmp_path, memory, capsys):
    memory(0.7 * peak(None, 1))
    mw.run(experiment(tmp_path))
    remat, microbatches = chosen(tmp_path)
    assert (remat, microbatches) != ("None", "1")
    assert peak(None if remat == "None" else remat[1:-1], int(microbatches)) <= 0.7 * peak(None, 1)
    assert f"chosen: remat={remat}, microbatches={microbatches} (" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_continues_keeps_its_choice(tmp_path, memory):
    memory(0.7 * peak(None, 1))
    mw.run(experiment(tmp_path))
    before = chosen(tmp_path)
    memory(10**12)  # another would be chosen now
    mw.run(experiment(tmp_path, max_steps=3), strict=False)
    assert chosen(tmp_path) == before


@pytest.mark.slow
def test_what_xla_refutes_is_not_taken(tmp_path, memory, monkeypatch):
    """The estimate says of all that it fits; XLA's figure decides."""
    from meshwright.plan import _choice

    limit = 0.7 * peak(None, 1)
    memory(limit)
    fits = plan.Memory(0, 0, 0, 0, 0, 1, 10**12)
    whole = plan.Site.plan
    monkeypatch.setattr(plan.Site, "plan", lambda site: dataclasses.replace(whole(site), memory=fits))
    seen = []
    judged = _choice._peak
    monkeypatch.setattr(_choice, "_peak", lambda parts: seen.append(judged(parts)) or seen[-1])
    mw.run(experiment(tmp_path))
    assert seen[0] > limit >= seen[-1]


def test_a_batch_whose_rows_meet_in_the_loss_is_not_cut(tmp_path, memory):
    def contrastive(params, batch):
        hidden = jnp.tanh(batch["x"] @ params["w"])
        return -jax.nn.log_softmax(hidden @ hidden.T).trace()

    rows, init = {"x": np.ones((1024, 4), np.float32)}, lambda key: {"w": jnp.ones((4, 512))}
    of = {"model": init, "loss": contrastive, "input": mw.Input(rows, batch_size=1024), "remat": None}
    made = experiment(tmp_path, **of)
    memory(0.5 * mw.plan.compile_ahead(dataclasses.replace(made, microbatches=1)).peak_bytes)
    with pytest.raises(UsageError, match=r"rows of the batch meet in the loss, in dot_general(.|\n)* Give"):
        mw.run(made)


@pytest.mark.slow
def test_if_nothing_fits_a_run_ends_before_it_begins_and_says_what_it_would_take(tmp_path, memory):
    memory(1000)
    with pytest.raises(UsageError, match=r"no choice fits into the 1000 B.* takes .*MiB") as error:
        mw.run(experiment(tmp_path))
    assert "fsdp" in str(error.value)
    assert not (tmp_path / "experiment.txt").exists()


@pytest.mark.slow
def test_a_policy_alone_is_chosen_for_the_given_microbatches(tmp_path):
    mw.run(experiment(tmp_path, microbatches=2))
    assert chosen(tmp_path) == ("None", "2")


@pytest.mark.slow
def test_a_plan_of_such_a_run_takes_the_best_estimate(tmp_path):
    found = plan.plan_step(experiment(tmp_path), "h100:8", compiled=False)
    assert (found.settings["remat"], found.settings["microbatches"]) == (None, 1)


def test_both_kinds_of_settings_are_written_on_the_command_line():
    made = dataclasses.replace(experiment("unused"), microbatches=4)
    assert made.microbatches == 4
    with pytest.raises(UsageError, match="microbatches"):
        experiment("unused", microbatches="some")
