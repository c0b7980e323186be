"""The text of a program that processes compare: constants are in it, paths are not."""

import hashlib
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.processes import _internal as processes

KERNEL = """
import jax
from jax.experimental import pallas as pl

def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * {factor}

def call(x):
    return pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""


def text(function, *arguments, platform="cpu"):
    traced = jax.jit(function).trace(*arguments)
    return processes.program_text(traced, traced.lower(lowering_platforms=(platform,)))


def kernel(folder, factor):
    folder.mkdir()
    path = folder / "kernel.py"
    path.write_text(KERNEL.format(factor=factor))
    spec = importlib.util.spec_from_file_location("kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.call


def test_a_kernel_is_the_same_in_other_folders_and_another_one_is_not(tmp_path):
    x = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    calls = [kernel(tmp_path / name, factor) for name, factor in (("a", 2.0), ("other", 2.0), ("c", 3.0))]
    here, there, other = (text(call, x, platform="tpu") for call in calls)
    assert here == there
    assert here != other
    assert str(tmp_path) not in here


@pytest.mark.parametrize("as_arguments", [False, True])
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_constants_that_are_closed_over_are_in_the_text(kind, as_arguments):
    tables = [kind(np.arange(1000, dtype=np.float32) + i) for i in (0, 0, 1)]
    before = jax.config.jax_use_simplified_jaxpr_constants
    jax.config.update("jax_use_simplified_jaxpr_constants", as_arguments)
    try:
        texts = [text(lambda x, table=table: x + table, jnp.ones(1000)) for table in tables]
    finally:
        jax.config.update("jax_use_simplified_jaxpr_constants", before)
    digests = [hashlib.sha256(each.encode()).hexdigest() for each in texts]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]
