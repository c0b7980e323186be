"""The one form in which times are written: 2026-11-22T18:20:01 (ISO 8601)."""

from datetime import UTC, datetime

FORMAT = "%Y-%m-%dT%H:%M:%S"
"""The form as `logging.Formatter` and `strftime` take it."""


def local_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, by the clock of this machine: for screens and logs."""
    return datetime.fromtimestamp(seconds).strftime(FORMAT)


def utc_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, as `2026-11-22T18:20:01Z`: for pages that are read elsewhere.

    Raises:
      ValueError, OverflowError, OSError: there is no such time.
    """
    return datetime.fromtimestamp(seconds, UTC).strftime(f"{FORMAT}Z")
