"""Reports to Trackio."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from meshwright.observe._kinds import Values
from meshwright.observe._trackers import as_media, installed
from meshwright.observe._writers import Writer


@contextmanager
def trackio(**init: Any) -> Generator[Writer, None, None]:
    """Open a Trackio run as a writer, and finish it on leaving the context.

    Use `name="digits-7", resume="allow"` to continue a run. Runs are kept in `$TRACKIO_DIR` on this machine,
    unless `space_id` or `server_url` is given.

    Args:
      init: The arguments of `trackio.init`.

    Raises:
      UsageError: The package trackio is not installed.

    Example:
      >>> with mw.observe.trackio(project="digits") as write:  # doctest: +SKIP
      ...     write(50, {"loss": 0.5})
    """
    package = installed("trackio", "init")
    run = package.init(**init)

    def write(step: int, values: Values, /) -> None:
        media = {name: as_media(package, name, value) for name, value in values.items()}
        run.log(
            {name: package.Markdown(x) if isinstance(x, str) else x for name, x in media.items()}, step=step
        )

    try:
        yield write
    finally:
        run.finish()
