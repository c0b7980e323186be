from pathlib import Path

import pytest

import meshwright as mw
from report.runs import experiment


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A run of ten steps that was continued once, from step 6."""
    run = tmp_path_factory.mktemp("runs") / "small"
    mw.run(experiment(run, max_steps=6))
    mw.run(experiment(run, max_steps=10))
    return run
