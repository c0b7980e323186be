"""Reports to Trackio."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from meshwright.metrics._histogram import Histogram
from meshwright.metrics._kinds import Image, Values, as_float
from meshwright.metrics._trackers import installed
from meshwright.metrics._writers import Writer


@contextmanager
def trackio(**init: Any) -> Generator[Writer, None, None]:
    """Open a run with `trackio.init(**init)`, and finish it on leaving.

    A run that goes on: `name="digits-7", resume="allow"`. It stays in `$TRACKIO_DIR` on this machine, unless
    a `space_id` or `server_url` is given.

    Raises:
      UsageError: trackio is not installed.
    """
    package = installed("trackio", "init")
    run = package.init(**init)

    def write(step: int, values: Values, /) -> None:
        run.log({name: _as_trackios(package, name, value) for name, value in values.items()}, step=step)

    try:
        yield write
    finally:
        run.finish()


def _as_trackios(package: Any, name: str, value: Any) -> Any:
    match value:
        case Histogram():
            return package.Histogram(np_histogram=value.bins())
        case Image():
            return package.Image(value.pixels)
        case str():
            return package.Markdown(value)
        case _:
            return as_float(name, value)
