"""Fine-tune the model of `source_code.py` for another task: to tell which package a piece of code is from.

    python source_code.py && python finetune_source_code.py
    python finetune_source_code.py init_state_builder=none workdir=runs/scratch     # the same, from scratch

The head is new and starts from scratch. Everything below it comes from the best checkpoint.
"""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import optax

import meshwright as mw
import source_code
from meshwright.cli import main
from meshwright.lm._models import decoder

PACKAGES = ("asyncio", "email", "encodings", "http", "importlib", "multiprocessing", "unittest", "xml")


def examples(files: Sequence[Path], length: int) -> dict[str, np.ndarray]:
    """Return pieces of the packages' code, uint8[n, length], and the package of each, int32[n]."""
    texts = [source_code.read(path for path in files if path.parts[0] == package) for package in PACKAGES]
    pieces = [text[: len(text) // length * length].reshape(-1, length) for text in texts]
    label = np.repeat(np.arange(len(PACKAGES), dtype=np.int32), [len(each) for each in pieces])
    return {"tokens": np.concatenate(pieces), "label": label}


def init(cfg: decoder.Config, key):
    """Return initial parameters of a transformer whose head classifies packages."""
    body, head = jax.random.split(key)
    weights = jax.random.normal(head, (cfg.model, len(PACKAGES))) / cfg.model**0.5
    return {**decoder.init(cfg, body), "head": weights}


def measure(cfg: decoder.Config, params, batch):
    """Return the loss of each piece, and whether its package was predicted: [B]."""
    features_BD = decoder.features(cfg, params, batch["tokens"]).mean(1)
    logits = features_BD @ params["head"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return {"loss": losses, "accuracy": logits.argmax(-1) == batch["label"]}


def open_averages_of_the_best(checkpoints: str):
    """Open the checkpoint with the best score on held-out files, with its averages as the parameters."""
    best = mw.checkpoints.open_best(checkpoints, "held_out/loss", "min")
    return mw.engine.open_averages(str(best))


def experiment(
    workdir: str = "runs/finetune_source_code",
    base: str = "runs/source_code",
    steps: int = 100,
    learning_rate: float = 1e-3,
    layers: int = 4,
    length: int = 256,
    batch_size: int = 16,
) -> mw.Experiment:
    """Return the experiment. `base` is the run to start from, which must have as many layers."""
    cfg = decoder.Config(layers=layers)
    train, held_out = (examples(files, length) for files in source_code.split())
    rate = optax.warmup_cosine_decay_schedule(0, learning_rate, steps // 10, steps, learning_rate / 10)
    measured = functools.partial(measure, cfg)
    below_the_head = mw.engine.from_checkpoint(
        f"{base}/checkpoints", "params/(?!head).*", open_with=open_averages_of_the_best
    )
    return mw.Experiment(
        workdir=workdir,
        model=functools.partial(init, cfg),
        loss=lambda params, batch, key: measured(params, batch)["loss"].mean(),
        optimizer=source_code.optimizer(rate),
        input=mw.Input(train, batch_size=batch_size),
        max_steps=steps,
        init_state_builder=below_the_head,
        evaluations={"held_out": mw.Evaluation(measured, held_out, when=50, batch_size=64)},
        save=mw.Save(when=50),
        logging=mw.Logging(every=10),
    )


if __name__ == "__main__":
    sys.exit(main(["train", "finetune_source_code:experiment", *sys.argv[1:]]))
