"""What a run tells people: framed, on the screen of one process and in a file of each."""

import contextlib
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from meshwright import process
from meshwright.metrics import Writer, jsonl, tee, tensorboard, wandb

_FORMAT = "[%(asctime)s - meshwright - process %(process_index)d of %(processes)d] %(message)s"


def framed(info: object, title: str | None, step: int | None) -> str:
    """Return `info` with a title above it, between lines as wide as its longest."""
    if title is None:
        return str(info)
    heading = f"### {title}" + (f" (step {step})" if step is not None else "")
    lines = str(info).splitlines()
    width = max(map(len, [heading, *lines]))
    return "\n".join(["", "=" * width, heading, "-" * width, *lines, "=" * width])


def logger(workdir: Path | None, *, on_screen: bool) -> logging.Logger:
    """Return a logger of its own, which no other has handlers of and which hands nothing on.

    It writes to stderr, if `on_screen`, and to `workdir/log.txt`, or for process 1 `log-1.txt`.
    """
    index = jax.process_index()
    made = logging.Logger(f"meshwright.deployer.{index}", logging.INFO)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)] if on_screen else []
    if workdir is not None:
        handlers.append(
            logging.FileHandler(workdir / (f"log-{index}.txt" if index else "log.txt"), delay=True)
        )
    about = {"process_index": index, "processes": jax.process_count()}
    for handler in handlers:
        handler.setFormatter(logging.Formatter(_FORMAT, "%m/%d/%Y %H:%M:%S", defaults=about))
        made.addHandler(handler)
    return made


def writers(
    opened: contextlib.ExitStack,
    workdir: Path | None,
    events: Path | None,
    wandb_init: Mapping[str, Any] | None,
    trackers: Sequence[Writer],
) -> Writer:
    """Return one writer to all places for metrics, with what is to be closed given to `opened`.

    Args:
      workdir: where `metrics.jsonl` goes.
      events: where TensorBoard's files go.
    """
    if not process.is_lead():
        return tee()
    found = list(trackers)
    if workdir is not None:
        found.append(jsonl(workdir / "metrics.jsonl"))
    if events is not None:
        found.append(opened.enter_context(tensorboard(events)))
    if wandb_init is not None:
        found.append(opened.enter_context(wandb(**wandb_init)))
    return tee(*found)
