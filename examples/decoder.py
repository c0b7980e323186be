"""The reference decoder at any published size: plan a run, measure one, or train one.

    python decoder.py file=README.md                                   # tiny, on any file's bytes
    python decoder.py size=7b batch_size=256 length=4096 mesh=fsdp=-1,tensor=8
    meshwright show decoder:experiment size=70b                        # allocates nothing of that size
    meshwright plan decoder:experiment size=7b lora=16 base=nf4 batch_size=1 --on h100:1

Without a file the tokens are random: the same work, but nothing to learn.
"""

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw
from meshwright.cli import main
from meshwright.cli.demo.text import Windows
from meshwright.lm._models import decoder

MATRICES = "layers/(q|k|v|o|gate|up|down)"
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
    lora: int | None = None,
    base: Literal["int8", "nf4"] | None = None,
) -> mw.Experiment:
    """Return the experiment.

    `size` is a name of `decoder.config`; `layer_remat` says what a layer keeps, and `gather` how often the
    loss gathers the head. `lora` is the rank of an adapter, beside a bfloat16 model whose matrices `base`
    stores in fewer bits.
    """
    cfg = decoder.config(SHORT.get(size, size))
    rows = Windows(np.fromfile(file, np.uint8), length) if file else RandomTokens(cfg.vocabulary, length)
    rate = optax.warmup_cosine_decay_schedule(0, learning_rate, steps // 10, steps, learning_rate / 10)
    init = functools.partial(decoder.init, cfg, dtype=jnp.float32 if lora is None else jnp.bfloat16)
    whole = mw.Experiment(
        workdir=workdir,
        mesh=mesh,
        rules=decoder.RULES,
        model=init if base is None else mw.lm.quantised_init(init, MATRICES, base),
        loss=lambda params, batch, key: decoder.loss(cfg, params, batch, remat=layer_remat, gather=gather),
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=0.1)),
        input=mw.Input(rows, batch_size=batch_size, item="tokens", items_per_example=length),
        max_steps=steps,
        compute_dtype=compute_dtype,
        logging=mw.Logging(every=10),
    )
    return whole if lora is None else mw.lm.adapted(whole, mw.lm.lora(MATRICES, rank=lora))


if __name__ == "__main__":
    sys.exit(main(["train", "decoder:experiment", *sys.argv[1:]]))
