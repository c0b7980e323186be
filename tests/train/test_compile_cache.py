import json
import subprocess
import sys

import pytest

import meshwright as mw
from meshwright.errors import UsageError

TRAINING = """
import collections, json, sys
import jax, jax.numpy as jnp, optax
import meshwright as mw

counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rsplit("/", 1)[-1]]))
mw.train.compile_cache(sys.argv[1] + "-other")
jax.jit(lambda x: x + 1)(1.0)
mw.train.compile_cache(sys.argv[1])
counts.clear()

layout, tx = mw.Layout(mw.make_mesh("data=-1")), optax.adam(0.1)
init = lambda key: {"w": jax.random.normal(key, (4,))}
step = mw.make_step(lambda params, batch, key: jnp.sum((params["w"] - batch) ** 2), tx, layout)
state, metrics = step(mw.train.init_state(init, tx, 0, layout), jnp.ones((8, 4)))
print(json.dumps({"loss": metrics["loss"].value.item().hex(), **counts}))
"""


def train(directory):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", TRAINING, directory], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_a_second_process_compiles_nothing_anew(tmp_path):
    directory = tmp_path / "compiled"
    first, second = train(directory), train(directory)
    assert len(list(directory.glob("*-cache"))) == first["cache_misses"]
    assert (first["cache_misses"], first.get("cache_hits", 0)) == (second["cache_hits"], 0)
    assert second["cache_hits"] >= 2
    assert second.get("cache_misses", 0) == 0
    assert second["loss"] == first["loss"]
    assert directory.stat().st_mode & 0o077 == 0


def test_a_directory_that_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot keep compiled programs in"):
        mw.train.compile_cache(tmp_path / "file")
