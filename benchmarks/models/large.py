"""A run of 80 billion parameters, to be described: Llama 3 70B with as many key heads as query heads."""

import functools

import numpy as np
import optax

import meshwright as mw
from meshwright.lm._models import decoder


def experiment(layers: int = 80, mesh: str = "data=-1,fsdp=8,tensor=8") -> mw.Experiment:
    """Describe the run. Its state would take 960 GB: parameters, and two moments of each, in float32."""
    cfg = decoder.Config(vocabulary=128_256, model=8192, heads=64, feed_forward=28_672, layers=layers)
    return mw.Experiment(
        workdir="runs/large",
        model=functools.partial(decoder.init, cfg),
        loss=lambda params, batch, key: decoder.logits(cfg, params, batch["tokens"]).mean(),
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, b2=0.95)),
        input=mw.Input({"tokens": np.zeros((1, 1), np.int32)}, batch_size=1024),
        max_steps=1_000_000,
        mesh=mesh,
        rules=decoder.RULES,
    )


def abstract_state() -> mw.TrainState:
    """Return the state as structs with shardings, on the devices that there are."""
    described = experiment()
    layout = mw.Layout(mw.make_mesh(described.mesh), described.rules)
    return mw.training.abstract_state(described.model, described.optimizer, layout)
