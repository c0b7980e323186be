"""A run that reads texts from files, on any number of processes."""

import functools

import optax

import meshwright as mw
from meshwright.lm._models import decoder

CONFIG = decoder.Config(vocabulary=256, model=32, layers=2, heads=2, feed_forward=64)
STEPS = 200


def experiment(workdir: str, texts: str, store: str) -> mw.Experiment:
    rows = mw.data.text(texts, tokenizer=mw.lm.Bytes(), length=128, store=store)
    return mw.Experiment(
        workdir=workdir,
        model=functools.partial(decoder.init, CONFIG),
        loss=_loss,
        optimizer=optax.sgd(0.1),
        input=mw.Input(rows, batch_size=8),
        max_steps=STEPS,
        mesh="data=-1",
        save=mw.Save(when=10),
        logging=mw.Logging(every=1),
    )


def _loss(params, batch):
    return decoder.loss(CONFIG, params, batch)
