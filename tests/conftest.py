"""Tests in a process share it and its eight virtual CPU devices.

They run each program once or a few times, so that compiling is most of what they take: XLA is asked to
compile quickly (`flags.py`); and what it has compiled is kept, in `.compiled`, for the programs that tests
start and for the next time. JAX finds it by the program, the flags and its own version.
"""

import gc
import os

from flags import COMPILED, QUICK

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=8 {QUICK}"
os.environ["JAX_PLATFORMS"] = "cpu"
# The width of the terminal from which tests are started, which pytest's workers are told, is none of theirs.
os.environ.pop("COLUMNS", None)

os.environ["JAX_COMPILATION_CACHE_DIR"] = str(COMPILED)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jax
import pytest
from hypothesis import settings

import compiling
import meshwright as mw
import slow_share
from base.storage.stores import (  # noqa: F401 - fixtures
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
from checkpoints.formats.readers.real import FIXTURES
from soak import SEED
from states import make_state, over_processes, same_bytes, save, state  # noqa: F401 - fixtures
from warm.python import python  # noqa: F401 - a fixture

# What JAX is made of stays for the whole session, and need not be looked through again and again.
gc.collect()
gc.freeze()
gc.set_threshold(20_000, 20, 50)

settings.register_profile("suite", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def devices_of_the_tests():
    """What a command in this process says of devices, as by `--fake-devices`, ends with its test."""
    said = {name: os.environ.get(name) for name in ("XLA_FLAGS", "JAX_PLATFORMS")}
    yield
    for name, value in said.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem():
    """Mark the cases of a test marked `daily(n)` as `nightly`, but for the first n.

    All cases of a test are made together, also where a few were asked for by their ids.
    """
    cases = yield
    for number, test in enumerate(cases if isinstance(cases, list) else ()):
        mark = test.get_closest_marker("daily")
        if mark and number >= mark.args[0]:
            test.add_marker(pytest.mark.nightly)
    return cases


def pytest_collection_finish(session):
    if not FIXTURES.is_dir() and any(test.get_closest_marker("others") for test in session.items):
        raise pytest.UsageError(
            f"the checkpoints of other systems are not there: {FIXTURES}\n  They are not in the repository. "
            "Say where they are: OTHERS=FOLDER make test-others"
        )


def pytest_addoption(parser):
    slow_share.add_options(parser)


def pytest_configure(config):
    if "PYTEST_XDIST_WORKER" not in os.environ:
        compiling.tidy(COMPILED)
    slow_share.configure(config)


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"random cases: SEED={SEED}")


@pytest.fixture(scope="session")
def mesh() -> jax.sharding.Mesh:
    """Eight devices: data 2 × fsdp 2 × tensor 2."""
    return mw.make_mesh("data=2,fsdp=2,tensor=2")


@pytest.fixture
def compiled_for_users():
    """Compile as a process does whose JAX was told of no folder for what it compiles."""
    with compiling.kept_in(None):
        yield
