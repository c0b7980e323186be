"""Waiting for what another thread or process does, instead of sleeping for as long as it usually takes."""

import time
from collections.abc import Callable


def eventually(
    condition: Callable[[], object], seconds: float = 300, reason: Callable[[], object] | None = None
) -> None:
    """Return as soon as a condition is true.

    Args:
      condition: What is asked again and again.
      seconds: The time after which it is taken for a hang, also where other programs use most of the machine.
      reason: Says why it is not true, as with the output of the program that is waited for.
    """
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"not within {seconds} s: {reason() if reason else condition}"
        time.sleep(0.02)
