import contextlib

import numpy as np
import pytest

import meshwright as mw


@pytest.fixture
def make_deployer():
    """Return a function that makes quiet deployers, which are closed when the test ends."""
    with contextlib.ExitStack() as opened:
        yield lambda **settings: opened.enter_context(
            mw.Deployer(**{"seed": 0, "verbose": False, **settings})
        )


@pytest.fixture
def params():
    """Parameters of two kinds of numbers, large enough to be split."""
    random = np.random.default_rng(0)
    return {
        "hidden": {"w": random.standard_normal((64, 32)).astype(np.float32), "b": np.zeros(32, np.float32)},
        "out": {"w": random.standard_normal((32, 8)).astype(np.float32)},
        "table": np.arange(16, dtype=np.int8).reshape(4, 4),
    }
