"""Two processes train an adapter of one split base, and write it."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.cli._launch import launch_local
from meshwright.models import hugging_face
from meshwright.tuning import merged_source, read_adapter

PROGRAM = str(Path(__file__).with_name("tuning_on_hosts.py"))
LLAMA = Path(__file__).parents[1] / "models" / "golden" / "llama"

pytestmark = pytest.mark.slow


def test_an_adapter_of_a_split_base_is_written_and_merged_on_two_processes(python, tmp_path):
    assert launch_local([*python, PROGRAM, str(tmp_path)], 2, grace_seconds=20) == 0
    lora, adapter = read_adapter(tmp_path / "adapter", LLAMA)
    wanted = mw.arrays.load(merged_source(hugging_face.open_model(LLAMA), adapter, lora))
    found = mw.arrays.load(hugging_face.open_model(tmp_path / "merged"))
    assert found["layers"]["q"].dtype == jnp.bfloat16
    for name, x in mw.tree.named_leaves(wanted).items():
        np.testing.assert_array_equal(np.asarray(x), np.asarray(mw.tree.named_leaves(found)[name]))
