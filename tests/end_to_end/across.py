"""A decoder with experts and packed rows, for any mesh axis, that ends itself when told to."""

import functools

import numpy as np
import optax
from mortal import ends_at

import meshwright as mw
from meshwright.lm._models import decoder

CFG = decoder.Config(
    vocabulary=32, model=16, layers=2, heads=2, feed_forward=16, experts=4, experts_per_token=2
)
RANDOM = np.random.default_rng(0)
ROWS = {
    "tokens": RANDOM.integers(1, 32, (40, 33)).astype(np.int32),
    "segments": np.sort(RANDOM.integers(1, 4, (40, 33)).astype(np.int32), axis=1),
}


def experiment(workdir: str, dies_at: int = 0) -> mw.Experiment:
    return mw.Experiment(
        workdir=workdir,
        rules=decoder.RULES,
        model=functools.partial(decoder.init, CFG),
        loss=functools.partial(decoder.loss, CFG),
        optimizer=optax.adam(1e-2),
        input=mw.Input(ROWS, batch_size=16),
        microbatches=2,
        max_steps=8,
        save=mw.Save(when=2),
        logging=mw.Logging(every=1, trackers=(lambda: ends_at(dies_at),)),
    )
