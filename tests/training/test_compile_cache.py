import json
import os
import subprocess
import sys
import time
import zlib

import jax
import pytest

import meshwright as mw
from meshwright.errors import UsageError

TRAINING = """
import collections, json, sys
import jax, jax.numpy as jnp, optax
import meshwright as mw

counts = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: counts.update([event.rsplit("/", 1)[-1]]))
mw.training._internal.compile_cache(sys.argv[1] + "-other")
jax.jit(lambda x: x + 1)(1.0)
mw.training._internal.compile_cache(sys.argv[1])
counts.clear()

layout, tx = mw.Layout(mw.make_mesh("data=-1")), optax.adam(0.1)
init = lambda key: {"w": jax.random.normal(key, (4,))}
step = mw.make_step(lambda params, batch, key: jnp.sum((params["w"] - batch) ** 2), tx, layout)
state, metrics = step(mw.training.init_state(init, tx, 0, layout), jnp.ones((8, 4)))
print(json.dumps({"loss": metrics["loss"].value.item().hex(), **counts}))
"""


def train(directory):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", TRAINING, directory], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.slow
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
        mw.training._internal.compile_cache(tmp_path / "file")


def made(directory, name, content, age_seconds):
    entry = directory / f"{name}-cache"
    entry.write_bytes(content)
    os.utime(entry, (time.time() - age_seconds,) * 2)
    return entry


def kept_after_opening(directory):
    before = jax.config.jax_compilation_cache_dir
    mw.training._internal.compile_cache(directory)
    mw.training._internal.compile_cache(before)
    return {entry.name.removesuffix("-cache") for entry in directory.glob("*-cache")}


def test_what_a_killed_process_left_half_written_is_deleted(tmp_path):
    whole = zlib.compress(bytes(range(256)) * 40)
    made(tmp_path, "whole", whole, 3600)
    made(tmp_path, "half", whole[:-9], 3600)
    made(tmp_path, "empty", b"", 3600)
    made(tmp_path, "garbled", b"\x78" + whole[1:20] + b"?" * 9, 3600)
    made(tmp_path, "of another method", b"\x28\xb5\x2f\xfd?", 3600)
    made(tmp_path, "being written", whole[:-9], 1)
    assert kept_after_opening(tmp_path) == {"whole", "of another method", "being written"}


def test_entries_are_looked_at_once(tmp_path):
    made(tmp_path, "whole", zlib.compress(b"program"), 3600)
    kept_after_opening(tmp_path)
    made(tmp_path, "older", b"", 3600)
    assert kept_after_opening(tmp_path) == {"whole", "older"}


def test_the_folder_of_the_user_keeps_to_its_limit(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("meshwright.training._compile._MAX_BYTES", 250)
    folder = mw.training._internal.user_compile_cache()
    folder.mkdir(parents=True)
    for days in range(5):
        made(folder, days, bytes(100), days * 86400)
    assert mw.training._internal.user_compile_cache() == folder
    assert {entry.name for entry in folder.iterdir()} == {"0-cache", "1-cache"}
