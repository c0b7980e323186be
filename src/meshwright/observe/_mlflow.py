"""Reports to MLflow."""

import re
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from meshwright.observe._kinds import Image, Values, numbers
from meshwright.observe._trackers import installed
from meshwright.observe._writers import Writer, behind

_MOST_IN_A_REQUEST = 1000  # of MLflow's REST interface
_REFUSED = re.compile(r"[^\w\-. :/]")


@contextmanager
def mlflow(**start_run: Any) -> Generator[Writer, None, None]:
    """Open an MLflow run as a writer, and end it on leaving the context; after an exception, as failed.

    The environment variable `MLFLOW_TRACKING_URI` names the server. Use `run_id="..."` to continue a run.
    Reports are sent in the background. Texts become artifacts, `name/step.txt`; histograms are left out, as
    MLflow has none. Characters that MLflow does not allow in the name of a number are replaced by `_`.

    Args:
      start_run: The arguments of `mlflow.start_run`.

    Raises:
      UsageError: The package mlflow is not installed.

    Example:
      >>> with mw.observe.mlflow(run_name="digits-7") as write:  # doctest: +SKIP
      ...     write(50, {"loss": 0.5})
    """
    package = installed("mlflow", "start_run")
    run_id, client = package.start_run(**start_run).info.run_id, package.MlflowClient()

    def write(step: int, values: Values, /) -> None:
        # By the run's id, as each thread has its own active run.
        now = int(1000 * time.time())
        named = {_REFUSED.sub("_", name): value for name, value in numbers(values).items()}
        metrics = (package.entities.Metric(*item, now, step) for item in named.items())
        while some := list(islice(metrics, _MOST_IN_A_REQUEST)):
            client.log_batch(run_id, some)
        for name, value in values.items():
            if isinstance(value, str):
                client.log_text(run_id, value, f"{name}/{step}.txt")
            elif isinstance(value, Image):
                client.log_image(run_id, value.pixels, key=name, step=step)

    try:
        with behind(write) as hand_over:  # each request waits for the server
            yield hand_over
    finally:
        package.end_run("FINISHED" if sys.exception() is None else "FAILED")
