"""All in-process tests share one process with eight virtual CPU devices.

They run each program once or a few times, so that compiling is most of what they take: XLA is asked not to
spend its time, a third of theirs, on faster code.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import pytest
from hypothesis import settings

import meshwright as mw
from soak import SEED
from states import make_state, over_processes, same_bytes, save, state  # noqa: F401 - fixtures
from storage.stores import (  # noqa: F401 - fixtures
    at,
    failing,
    gcs,
    gcs_run,
    memory,
    run,
    s3,
    s3_client,
    s3_faults,
    s3_run,
)

settings.register_profile("suite", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("suite")


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"random cases: SEED={SEED}")


@pytest.fixture(scope="session")
def mesh() -> jax.sharding.Mesh:
    """Eight devices: data 2 × fsdp 2 × tensor 2."""
    return mw.make_mesh("data=2,fsdp=2,tensor=2")
