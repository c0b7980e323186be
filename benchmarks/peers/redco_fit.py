"""redco's `Trainer`, as its users would have it. Its progress bar is on, as it is by default."""

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any, TextIO

import jax
import numpy as np
import optax
from peers.loops import Run, timed

SHARE = 5  # its steps take several times as long, so a fifth as many do


def is_wanted(options: argparse.Namespace) -> bool:
    """Return whether redco is measured too. If it is not installed, `--tiny` says so and leaves it out."""
    if not options.redco or importlib.util.find_spec("redco"):
        return options.redco
    missing = "redco is not installed: pip install redco==0.4.23 tqdm"
    if not options.tiny:
        sys.exit(f"{missing}\n  Or leave it out with --no-redco.")
    print(f"redco is left out. {missing}")
    return False


def stacked(examples: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}


def trainer(
    params: Any,
    loss: Callable[[Any, Any], jax.Array],
    optimizer: optax.GradientTransformation,
    nowhere: TextIO,
    num_model_shards: int = 1,
) -> Any:
    """Return a `Trainer` that splits the parameters as its own rules say."""
    from redco import Deployer, Trainer

    with contextlib.redirect_stderr(nowhere):
        deployer = Deployer(jax_seed=0, n_model_shards=num_model_shards)
        return Trainer(
            deployer=deployer,
            collate_fn=stacked,
            apply_fn=None,
            loss_fn=lambda rng, state, params, batch, is_training: loss(params, batch),
            params=params,
            optimizer=optimizer,
            params_sharding_rules=deployer.get_sharding_rules(params),
        )


def fit_loop(
    fitted: Any, examples: list[Any], per_device_batch_size: int, steps_per_epoch: int, nowhere: TextIO
) -> Run:
    def run(num_steps: int) -> int:
        num_epochs = max(1, num_steps // SHARE // steps_per_epoch)
        with contextlib.redirect_stderr(nowhere):
            fitted.fit(examples, per_device_batch_size=per_device_batch_size, n_epochs=num_epochs)
        jax.block_until_ready(fitted.state.params)
        return num_epochs * steps_per_epoch

    return timed(run)
