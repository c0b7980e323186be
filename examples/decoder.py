"""The reference decoder at any published size: plan a run, measure one, or train one.

    python decoder.py file=README.md                                   # tiny, on any file's bytes
    python decoder.py size=7b batch_size=256 length=4096 mesh=fsdp=-1,tensor=8
    meshwright show decoder:experiment size=70b                        # allocates nothing of that size

Without a file the tokens are random: the same work, but nothing to learn.
"""

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import optax

import meshwright as mw
from meshwright.cli import main
from meshwright.demo.text import Windows
from meshwright.models import decoder

SHORT = {"7b": "llama-7b", "70b": "llama-70b"}


@dataclass(frozen=True)
class RandomTokens:
    """Rows of `length + 1` tokens, each row always the same."""

    vocabulary: int
    length: int

    def __len__(self) -> int:
        return 2**30

    def __getitem__(self, index: int):
        tokens = np.random.default_rng(index).integers(0, self.vocabulary, self.length + 1)
        return {"tokens": tokens.astype(np.int32)}

    def __getitems__(self, ids: Sequence[int]):
        return {"tokens": np.stack([self[index]["tokens"] for index in ids])}


def experiment(
    workdir: str = "runs/decoder",
    size: str = "tiny",
    batch_size: int = 16,
    length: int = 2048,
    steps: int = 100,
    learning_rate: float = 3e-4,
    file: str | None = None,
    mesh: str = "fsdp=-1",
    compute_dtype: str | None = "bfloat16",
    layer_remat: str = "nothing",
    gather: Literal["once", "per chunk"] = "once",
) -> mw.Experiment:
    """Return the experiment.

    `size` is a name of `decoder.config`; `layer_remat` says what a layer keeps, and `gather` how often the
    loss gathers the head.
    """
    cfg = decoder.config(SHORT.get(size, size))
    rows = Windows(np.fromfile(file, np.uint8), length) if file else RandomTokens(cfg.vocabulary, length)
    rate = optax.warmup_cosine_decay_schedule(0, learning_rate, steps // 10, steps, learning_rate / 10)
    return mw.Experiment(
        workdir=workdir,
        mesh=mesh,
        rules=decoder.RULES,
        model=functools.partial(decoder.init, cfg),
        loss=lambda params, batch, key: decoder.loss(cfg, params, batch, remat=layer_remat, gather=gather),
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=0.1)),
        input=mw.Input(rows, batch_size=batch_size, item="tokens", items_per_example=length),
        max_steps=steps,
        compute_dtype=compute_dtype,
        logging=mw.Logging(every=10),
    )


if __name__ == "__main__":
    sys.exit(main(["train", "decoder:experiment", *sys.argv[1:]]))
