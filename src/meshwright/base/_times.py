"""Times as text, in one format everywhere: 2026-11-22T18:20:01 (ISO 8601)."""

from datetime import UTC, datetime

FORMAT = "%Y-%m-%dT%H:%M:%S"
"""The format, for `logging.Formatter` and `strftime`."""


def local_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, in this machine's time zone, for screens and logs."""
    return datetime.fromtimestamp(seconds).strftime(FORMAT)


def utc_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, as `2026-11-22T18:20:01Z`, for pages that are read elsewhere."""
    return datetime.fromtimestamp(seconds, UTC).strftime(f"{FORMAT}Z")
