"""Random histories of a run that is changed and hit now and then end with the bits of undisturbed ones."""

import contextlib

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import EXAMPLES, experiment, measure
from engine.trainer.test_resume import Crash, at, crash, sigterm
from meshwright.errors import Interrupted
from soak import cases, rng


def history(random):
    """Return some legs of a run: the step that each goes to, and the settings that it goes on with."""
    steps = sorted(random.sample(range(2, 20), random.randint(1, 3)))
    return [(step, {"learning_rate": random.choice((0.01, 0.02, 0.05))}) for step in steps]


def saving(random):
    """Return settings that change no bits: when to save, evaluate and report."""
    return {
        "save": mw.Save(when=random.randint(1, 4)),
        "evaluations": {"all": mw.Evaluation(measure, EXAMPLES, when=random.randint(1, 5), batch_size=16)},
    }


def leg(run, max_steps, learning_rate, hit=None, **more):
    trackers = () if hit is None else (lambda: contextlib.nullcontext(at(*hit)),)
    optimizer = optax.adam(learning_rate)
    logging = mw.Logging(every=1, trackers=trackers)
    return mw.run(experiment(run, optimizer=optimizer, max_steps=max_steps, logging=logging, **more))


def arrays(outcome):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(outcome.state) if x.dtype != jax.dtypes.prng_key]


@pytest.mark.soak
@pytest.mark.parametrize("case", range(cases(few=2, many=100)))
@pytest.mark.daily(1)
def test_a_run_that_is_changed_and_hit_comes_to_the_same_bits(tmp_path, case):
    random = rng(f"changed {case}")
    legs = history(random)
    for step, changed in legs:
        undisturbed = leg(tmp_path / "undisturbed", step, **changed)
    begins = 0
    for step, changed in legs:
        for _ in range(random.randint(0, 2)):
            hit = random.randint(begins + 1, step), random.choice((crash, sigterm))
            with contextlib.suppress(Interrupted, Crash):
                leg(tmp_path / "hit", step, hit=hit, **changed, **saving(random))
        found = leg(tmp_path / "hit", step, **changed, **saving(random))
        begins = step
    assert arrays(found) == arrays(undisturbed)
    assert found.step == undisturbed.step
