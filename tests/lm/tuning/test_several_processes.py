"""Two processes train an adapter of one split base, and write it."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from flags import QUICK
from meshwright.launch._internal import launch_local
from meshwright.lm._models import hugging_face
from meshwright.lm._tuning._merged import merged_source
from meshwright.lm._tuning._peft import read_adapter

PROGRAM = str(Path(__file__).with_name("tuning_on_hosts.py"))
LLAMA = Path(__file__).parents[2] / "lm" / "models" / "golden" / "llama"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(python, tmp_path_factory):
    """The runs of two processes with four devices each, and of one with one."""
    runs = tmp_path_factory.mktemp("split"), tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        for run, processes, devices, mesh in zip(
            runs, (2, 1), (4, 1), ("fsdp=4,tensor=2", "data=1"), strict=True
        ):
            patch.setenv("XLA_FLAGS", f"--xla_force_host_platform_device_count={devices} {QUICK}")
            assert launch_local([*python, PROGRAM, str(run), mesh], processes, grace_seconds=20) == 0
    return runs


def test_an_adapter_of_a_split_base_is_written_and_merged_on_two_processes(trained):
    run, _ = trained
    lora, adapter = read_adapter(run / "adapter", LLAMA)
    wanted = mw.checkpoints.load(merged_source(hugging_face.open_model(LLAMA), adapter, lora))
    found = mw.checkpoints.load(hugging_face.open_model(run / "merged"))
    assert found["layers"]["q"].dtype == jnp.bfloat16
    for name, x in mw.base._internal.named_leaves(wanted).items():
        np.testing.assert_array_equal(np.asarray(x), np.asarray(mw.base._internal.named_leaves(found)[name]))


def test_two_processes_with_four_devices_train_as_one_with_one(trained):
    (found, after), (expected, alone) = (
        (losses(run), read_adapter(run / "adapter", LLAMA)[1]) for run in trained
    )
    assert [step for step, _ in expected] == [1, 2, 3, 4]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for name, x in mw.base._internal.named_leaves(alone).items():
        np.testing.assert_allclose(mw.base._internal.named_leaves(after)[name], x, atol=1e-5)


def losses(run):
    reports = mw.observe.read_jsonl(run / "run/metrics.jsonl")
    return [(report["step"], report["loss"]) for report in reports if "loss" in report]
