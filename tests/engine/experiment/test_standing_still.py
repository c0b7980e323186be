"""What a run takes for a hang: also what happens for the first time, but not what takes long as a rule."""

import re
import time

import numpy as np
import pytest

import meshwright as mw
from engine.experiment.runs import experiment, measure
from eventually import eventually


class Heard:
    """What a run says on stderr of standing still."""

    def __init__(self, capfd):
        self._capfd, self._said = capfd, ""

    def said(self):
        self._said += self._capfd.readouterr().err
        return self._said

    def wait(self):
        eventually(lambda: "the phase evaluation" in self.said())


@pytest.fixture
def heard(capfd):
    return Heard(capfd)


def test_a_hang_in_the_first_step_is_told(tmp_path, heard):
    def when(step):
        if step == 1:
            heard.wait()
        return False

    evaluation = mw.Evaluation(measure, {"x": np.ones((8, 4), np.float32)}, when, batch_size=8)
    watchdog = mw.Watchdog(shortest_seconds=0.25, first_seconds=1)
    mw.run(experiment(tmp_path, max_steps=2, evaluations={"all": evaluation}, watchdog=watchdog))
    assert "for longer than 1 s, for the first time in the phase evaluation." in heard.said()
    assert re.search(r"in the phase evaluation, at .*\.py:\d+ in ", heard.said())


@pytest.mark.slow
def test_a_save_that_takes_as_long_as_the_one_before_is_no_hang(tmp_path, heard):
    def keep(scores):
        time.sleep(0.8)
        return set(scores)

    save, watchdog = mw.Save(when=20, keep=keep), mw.Watchdog(shortest_seconds=0.6)
    mw.run(experiment(tmp_path, max_steps=40, save=save, watchdog=watchdog))
    assert "stands still" not in heard.said()
