"""A disk that is full, for tests."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_room_for_more_than(num_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond `num_bytes`; not even what a runner writes of its tests."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
