"""The three laws in an object store of which requests fail at random, before or after they took effect."""

import os
import random

import numpy as np
import pytest

from base.storage.gcs import FakeGcs
from meshwright.base._storage import _settings
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import last
from meshwright.errors import MeshwrightError

STEPS = int(os.environ.get("KILLS", "50")) // 5
RUN = "gs://bucket/run"


@pytest.fixture
def store(monkeypatch):
    """Return a store that is asked twice at most."""
    for retries in (_settings.PATIENCE, _settings.IMPATIENCE):
        monkeypatch.setitem(retries, "max_retries", 1)
        monkeypatch.setitem(retries, "first", 0.001)
    with FakeGcs() as gcs:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        yield gcs


def fails_at_random(number):
    return random.choice(["before", "after"]) if random.random() < 0.1 else None


def state(step):
    return {"x": np.arange(1000) + step}


def save(step):
    """Return whether that succeeds."""
    try:
        with Checkpoints(RUN, keep=last(2)) as checkpoints:
            checkpoints.save(step, state(step))
    except MeshwrightError:
        return False
    return True


def check(told):
    """Check that all that is offered is whole, and that `told`, or a later step, is."""
    run = Checkpoints(RUN)
    offered = [path for path in run.directory.glob("step_*") if (path / "manifest.json").is_file()]
    assert told < 0 or run.latest() >= told
    for source in map(open_source, offered):
        assert (restore(source, state(0))["x"] == state(source.step)["x"]).all()


def test_requests_that_fail_at_random_cost_no_checkpoint(store):
    outcomes, told = [], -1
    while len(outcomes) < STEPS or len(set(outcomes)) < 2:  # until there were both, saves and failures
        store.fails = fails_at_random
        outcomes.append(save(len(outcomes)))
        told = len(outcomes) - 1 if outcomes[-1] else told
        store.fails = lambda number: None
        check(told)
    assert save(len(outcomes))
    check(len(outcomes))
