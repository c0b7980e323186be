import math

import pytest

from meshwright.errors import DivergedError
from meshwright.metrics import halting


def test_a_finite_loss_and_reports_without_one_pass():
    halt = halting(lambda: None)
    halt(1, {"loss": 1.0, "accuracy": math.nan})
    halt(2, {"eval_loss": math.inf})


@pytest.mark.parametrize("loss", [math.nan, math.inf])
@pytest.mark.parametrize(("saved", "says"), [(None, "none"), (0, "step 0"), (8, "step 8")])
def test_a_loss_that_is_not_finite_ends_the_run_and_says_what_is_saved(loss, saved, says):
    with pytest.raises(DivergedError, match=rf"at step 9 is {loss};.*\s+The newest checkpoint: {says}\."):
        halting(lambda: saved)(9, {"loss": loss})
