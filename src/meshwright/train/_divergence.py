"""The end of a run that no longer computes with numbers, before it saves what it cannot go on from."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from meshwright import tree
from meshwright.errors import DivergedError, listed
from meshwright.metrics import Values, Writer
from meshwright.sharding import parameter_of
from meshwright.train._loop import RUN_AHEAD, at_most_ahead
from meshwright.train._offload import on_devices
from meshwright.train._state import TrainState
from meshwright.train._trainable import Tx, as_trainable

Newest = Callable[[], int | None]
"""Returns the step of the checkpoint that a restart would take, or None: `checkpoints.settled`."""


def halt_on_divergence(newest: Newest, *, patience: int = 100) -> Writer:
    """Return a writer that ends the run when a reported loss is not finite.

    All processes must have it, for all must stop. Reports of updates that were all skipped
    (`skip_exploding`) are passed over, until none was made in more than `patience` steps in a row.

    Raises (when called):
      DivergedError: naming the checkpoint that a restart would take.
    """
    updated_at: int | None = None

    def write(step: int, values: Values, /) -> None:
        nonlocal updated_at
        skipped, is_finite = values.get("skipped"), math.isfinite(values.get("loss", 0.0))
        if updated_at is None or (skipped is not None and skipped < 1 and is_finite):
            updated_at = step
        if skipped == 1 and step - updated_at <= patience:
            return
        if not is_finite:
            raise _diverged(f"the loss reported at step {step} is {values['loss']}", newest())
        if skipped == 1:
            raise _diverged(f"all updates since step {updated_at} were skipped, up to step {step}", newest())

    return write


def check_finite(optimizer: Tx, newest: Newest) -> Callable[[int, TrainState], None]:
    """Return a function `(step, state)` that refuses a state that is not finite: a `Checkpoints.check_state`.

    It looks at the parameters that `optimizer` trains and at what the optimizer keeps beside each of them: moments
    and averages. Frozen parameters, the model state and single numbers of the optimizer may be infinite.

    Collective, on the devices; one truth value for each array comes to the host.

    Raises (when called):
      DivergedError: naming arrays that are not finite, and the checkpoint that a restart would take.
    """

    def check(step: int, state: TrainState) -> None:
        arrays, wait, found = _trained(optimizer, state), at_most_ahead(RUN_AHEAD), {}
        for name, x in arrays.items():
            found[name] = _is_finite(x)
            wait(found[name])
        wrong = [name for name, is_finite in jax.device_get(found).items() if not is_finite]
        if wrong:
            raise _diverged(f"the state after step {step} is not finite: {listed(wrong)}", newest(), step)

    return check


@jax.jit
def _is_finite(x: jax.Array) -> jax.Array:
    # By itself for each array: one program for all takes ever longer to compile, a minute of 10,000 arrays.
    return jnp.isfinite(on_devices(x)).all()


def _trained(optimizer: Tx, state: TrainState) -> dict[str, jax.Array]:
    """Return what training moves, by name: trained parameters, and what is kept beside each of them."""
    params = tree.named_leaves(as_trainable(optimizer).split(state.params)[0])

    def is_beside(name: str, x: jax.Array) -> bool:
        parameter = parameter_of(name, params)
        return parameter is not None and (x.ndim > 0 or params[parameter].ndim == 0)

    kept = {name: x for name, x in tree.named_leaves(state.opt_state).items() if is_beside(name, x)}
    return _inexact("params", params) | _inexact("opt_state", kept)


def _inexact(prefix: str, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    floating = {name: x for name, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.inexact)}
    return {f"{prefix}/{name}".rstrip("/"): x for name, x in floating.items()}


def _diverged(what: str, newest: int | None, step: int | None = None) -> DivergedError:
    if newest is not None and newest == step:
        return DivergedError(
            f"{what}.\n  It is that of the newest checkpoint: take this one away, and the run goes on "
            "from the one before."
        )
    saved = "none" if newest is None else f"step {newest}"
    return DivergedError(
        f"{what}; it is not saved.\n  The newest checkpoint: {saved}. Lower the learning rate, clip the "
        "gradients, or look at the data since then. What is infinite on purpose must be frozen: `mw.Trainable`."
    )
