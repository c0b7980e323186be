"""The end of a run whose loss is no longer a number."""

import math
from collections.abc import Callable

from meshwright.errors import DivergedError
from meshwright.metrics import Values, Writer


def halt_on_divergence(latest: Callable[[], int | None], *, patience: int = 100) -> Writer:
    """Return a writer that ends the run when a reported loss is not finite.

    All processes must have it, for all must stop. Where a report comes before each save nothing bad is saved.
    Reports of updates that were all skipped (`skip_exploding`) are passed over, until more than `patience`
    steps in a row had no finite loss.

    Args:
      latest: returns the step of the newest checkpoint, or None: `checkpoints.latest`.

    Raises (when called):
      DivergedError: naming that checkpoint.
    """
    finite_at: int | None = None

    def write(step: int, values: Values, /) -> None:
        nonlocal finite_at
        if finite_at is None or math.isfinite(values.get("loss", math.nan)):
            finite_at = step
        is_skipped = values.get("skipped") == 1 and step - finite_at <= patience
        if not math.isfinite(values.get("loss", 0.0)) and not is_skipped:
            saved = latest()
            newest = "none" if saved is None else f"step {saved}"
            raise DivergedError(
                f"the loss reported at step {step} is {values['loss']}; nothing was saved since the last "
                f"finite one.\n  The newest checkpoint: {newest}. Lower the learning rate, clip the "
                "gradients, or look at the data since then."
            )

    return write
