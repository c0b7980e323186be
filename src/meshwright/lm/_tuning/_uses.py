"""Errors about models that use an adapted weight otherwise than in `x @ weight`."""

import contextlib
from collections.abc import Iterator

from meshwright.errors import UsageError
from meshwright.lm._tuning._adapted import Adapted


@contextlib.contextmanager
def explaining_other_uses() -> Iterator[None]:
    """Explain an error of a model that got an adapted weight where it needs an array."""
    try:
        yield
    except (TypeError, AttributeError, ValueError) as error:
        if Adapted.__name__ not in str(error):
            raise
        raise UsageError(
            'the model uses an adapted weight otherwise than as x @ w, which form="factored" of mw.lm.lora '
            f'needs: {str(error).splitlines()[0]}\n  Use mw.lm.lora(…, form="merged"), which gives the model '
            "arrays."
        ) from error
