"""Random histories of calls of `fit`, hit at random and begun anew, end with the bits of undisturbed ones."""

import contextlib

import pytest

import meshwright as mw
from engine.trainer.runs import EXAMPLES, arrays, deployer, fit, trainer
from engine.trainer.test_calls import OTHERS
from engine.trainer.test_resume import Crash, at, crash, sigterm
from meshwright.errors import Interrupted
from soak import cases, rng


def history(random):
    """Return some calls: on which examples, and how often each call reads them."""
    return [(random.choice((EXAMPLES, OTHERS)), random.randint(1, 2)) for _ in range(random.randint(1, 4))]


def calls_of(made, calls, **options):
    for examples, epochs in calls:
        fit(made, examples, epochs=epochs, **options)


@pytest.mark.soak
@pytest.mark.parametrize("case", range(cases(few=2, many=100)))
@pytest.mark.daily(1)
def test_however_often_it_is_hit_the_same_calls_come_to_the_same_bits(tmp_path, case):
    random = rng(f"histories {case}")
    calls = history(random)
    undisturbed = trainer()
    calls_of(undisturbed, calls)
    saving = {"save": mw.Save(when=random.randint(1, 3)), "logging": mw.Logging(every=1)}
    for _ in range(random.randint(1, 3)):
        step, act = random.randint(1, undisturbed.step), random.choice((sigterm, crash))
        with contextlib.suppress(Interrupted, Crash):
            calls_of(trainer(given=deployer(tmp_path, trackers=[at(step, act)])), calls, **saving)
    made = trainer(tmp_path)
    calls_of(made, calls, **saving)
    assert arrays(made) == arrays(undisturbed)


@pytest.mark.soak
@pytest.mark.parametrize("case", range(cases(few=1, many=30)))
def test_in_one_process_a_call_that_was_hit_is_made_again(tmp_path, case):
    random = rng(f"again {case}")
    calls = history(random)
    undisturbed = trainer()
    calls_of(undisturbed, calls)
    step, hits = random.randint(1, undisturbed.step), []

    def once():
        if not hits:
            hits.append(step)
            sigterm()

    made = trainer(given=deployer(tmp_path, trackers=[at(step, once)]))
    for examples, epochs in calls:
        try:
            fit(made, examples, epochs=epochs, save=mw.Save(when=1), logging=mw.Logging(every=1))
        except Interrupted:
            fit(made, examples, epochs=epochs, save=mw.Save(when=1), logging=mw.Logging(every=1))
    assert arrays(made) == arrays(undisturbed)
