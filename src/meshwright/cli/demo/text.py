"""English prose, byte by byte: a small transformer on the reference topics that come with Python.

The text is `pydoc_data.topics`, which `help("LAMBDAS")` prints: 0.47 MB, licensed PSF-2.0.
"""

import functools

import jax
import numpy as np
import optax

import meshwright as mw
from meshwright.lm._internal import decoder


class Windows:
    """Windows of `length + 1` bytes. Each begins with the last byte of the window before it."""

    def __init__(self, text: np.ndarray, length: int):
        self._text, self._length = text, length

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._length

    def __getitem__(self, index: int):
        return jax.tree.map(lambda x: x[0], self.__getitems__([index]))

    def __getitems__(self, ids):
        starts = np.asarray(ids)[:, None] * self._length
        return {"tokens": self._text[starts + np.arange(self._length + 1)].astype(np.int32)}


def topics() -> tuple[np.ndarray, np.ndarray]:
    """Return `(train, held_out)`, uint8[n] each; the last tenth of the text is held out."""
    try:
        from pydoc_data.topics import topics as texts
    except ImportError as error:
        raise mw.errors.InputError(
            "this Python has no reference topics (pydoc_data.topics). "
            "Install the full standard library, or try `meshwright demo digits`."
        ) from error
    text = np.frombuffer("\n".join(texts[name] for name in sorted(texts)).encode(), np.uint8)
    end = int(len(text) * 0.9)
    return text[:end], text[end:]


def measure(cfg: decoder.Config, params, batch):
    """Return the loss of each byte in nats: [batch, length]."""
    return {"loss": decoder.losses(cfg, params, batch["tokens"])}


def loss(cfg: decoder.Config, params, batch, key):
    """Return the mean loss of a batch, in nats."""
    return decoder.loss(cfg, params, batch)


def experiment(
    workdir: str = "runs/text",
    learning_rate: float = 4e-3,
    layers: int = 4,
    length: int = 128,
    batch_size: int = 8,
    steps: int = 150,
) -> mw.Experiment:
    """Return the experiment. Its settings can be changed on the command line: `layers=6`."""
    cfg = decoder.Config(layers=layers)
    train, held_out = topics()
    rate = mw.training.schedule(
        "cosine", peak=learning_rate, max_steps=steps, warmup_steps=steps // 10, end=learning_rate / 10
    )
    return mw.Experiment(
        workdir=workdir,
        model=functools.partial(decoder.init, cfg),
        loss=functools.partial(loss, cfg),
        optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95)),
        input=mw.Input(Windows(train, length), batch_size=batch_size, item="bytes", items_per_example=length),
        max_steps=steps,
        rules=decoder.RULES,
        evaluations={
            "held_out": mw.Evaluation(
                functools.partial(measure, cfg),
                Windows(held_out, length),
                when=50,
                batch_size=64,
                metric_fn=mw.engine.perplexity,  # of a byte
            )
        },
        samples=mw.lm.Generation(
            mw.lm.with_cache(cfg),
            tokenizer=mw.lm.Bytes(),
            prompts=("The ", "Python "),
            decoding=mw.lm.Decoding(max_new_tokens=120, temperature=0.7),
            when=50,
        ),
        save=mw.Save(when=25),
        logging=mw.Logging(every=5),
    )
