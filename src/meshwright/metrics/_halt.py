"""The end of a run whose loss is no longer a number."""

import math
from collections.abc import Callable, Mapping

from meshwright.errors import DivergedError
from meshwright.metrics._writers import Writer


def halting(newest: Callable[[], int | None]) -> Writer:
    """Return a writer that ends the run when a reported loss is not finite.

    All processes need one, last of their writers: what they are told is the same, so all raise, and the
    report has been written.

    Args:
      newest: returns the step of the newest checkpoint, or None, for the message.

    Raises:
      DivergedError: when called, if `loss` is among the values and not finite.
    """

    def write(step: int, values: Mapping[str, float], /) -> None:
        if not math.isfinite(values.get("loss", 0.0)):
            found = newest()
            saved = "none" if found is None else f"step {found}"
            raise DivergedError(
                f"the loss reported at step {step} is {values['loss']}; nothing was saved since the last "
                f"finite one.\n  The newest checkpoint: {saved}. Lower the learning rate, clip the "
                "gradients, or look at the data since then."
            )

    return write
