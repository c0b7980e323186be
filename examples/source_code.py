"""A small transformer learns Python, byte by byte, from the source code of the standard library.

    python source_code.py                                     # five minutes on two cores
    python source_code.py steps=50 layers=1 workdir=runs/quick  # or: meshwright train source_code:experiment

Kill it when you like: the same command continues from the last checkpoint and ends with the same bits.
"""

import functools
import math
import sys
import sysconfig
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import optax

import meshwright as mw
from meshwright.cli import main
from meshwright.cli.demo.text import Windows
from meshwright.lm._models import decoder

LIBRARY = Path(sysconfig.get_path("stdlib"))
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
"""What was installed beside the library, and its tests, which are larger than all of it and much alike."""


def split() -> tuple[list[Path], list[Path]]:
    """Return the library's files for training, and a sixteenth held out, both in a mixed order."""
    found = (path.relative_to(LIBRARY) for path in LIBRARY.rglob("*.py"))
    files = sorted((path for path in found if not LEFT_OUT & {*path.parts}), key=number)
    held_out = [path for path in files if number(path) < 2**32 // 16]
    return files[len(held_out) :], held_out


def number(path: Path) -> int:
    """Return 32 bits that depend only on a file's name, so that all versions hold out the same files."""
    return zlib.crc32(path.as_posix().encode())


def read(paths: Iterable[Path]) -> np.ndarray:
    """Return the text of the files, joined, as uint8[n]."""
    return np.frombuffer(b"\n".join((LIBRARY / path).read_bytes() for path in paths), np.uint8)


def score(cfg: decoder.Config, params, batch):
    """Return the loss of each byte, in nats and in bits: [B, T]."""
    nats = decoder.losses(cfg, params, batch["tokens"])
    return {"loss": nats, "bits_per_byte": nats / math.log(2)}


def optimizer(rate: optax.Schedule, ema: float = 0.99) -> optax.GradientTransformation:
    """Return AdamW that clips gradients, skips exploding updates, and keeps an average of the parameters."""
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95))
    return optax.chain(
        mw.training.skip_exploding(clipped, mw.training.mean_plus_std(6)), mw.training.keep_ema(ema)
    )


def experiment(
    workdir: str = "runs/source_code",
    steps: int = 500,
    learning_rate: float = 4e-3,
    layers: int = 4,
    length: int = 256,
    batch_size: int = 16,
    evaluated: int = 2**18,
) -> mw.Experiment:
    """Return the experiment. `evaluated` is the number of bytes that each evaluation reads."""
    cfg = decoder.Config(layers=layers)
    train, held_out = map(read, split())
    rate = optax.warmup_cosine_decay_schedule(0, learning_rate, steps // 10, steps, learning_rate / 10)
    scored = functools.partial(score, cfg)
    return mw.Experiment(
        workdir=workdir,
        model=functools.partial(decoder.init, cfg),
        loss=lambda params, batch, key: decoder.loss(cfg, params, batch),
        optimizer=optimizer(rate),
        input=mw.Input(Windows(train, length), batch_size=batch_size, item="bytes", items_per_example=length),
        max_steps=steps,
        mesh_rules=(
            ("cpu.*", mw.parallel.override(microbatches=2)),  # half the memory, at the same speed
            ("(NVIDIA|TPU).*", mw.parallel.override(compute_dtype="bfloat16")),
        ),
        evaluations={
            "held_out": mw.Evaluation(scored, Windows(held_out[:evaluated], length), when=100, batch_size=64),
            "train": mw.Evaluation(scored, Windows(train[:evaluated], length), when=250, batch_size=64),
        },
        save=mw.Save(
            when=50,
            keep=mw.checkpoints.keep_any(
                mw.checkpoints.last(2),
                mw.checkpoints.best("held_out/loss", "min", without_metric="drop"),
            ),
        ),
        logging=mw.Logging(every=10),
    )


if __name__ == "__main__":
    sys.exit(main(["train", "source_code:experiment", *sys.argv[1:]]))
