"""End a run with values that are not finite, before it saves a checkpoint of them."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from meshwright.base._internal import tree
from meshwright.errors import DivergedError, listed
from meshwright.observe._internal import Values, Writer
from meshwright.parallel._internal import parameter_of
from meshwright.training._loop import at_most_ahead
from meshwright.training._state import TrainState
from meshwright.training._trainable import Tx, as_trainable, on_devices

Newest = Callable[[], int | None]
"""A function that returns the step of the checkpoint that a restart would use, or None.

`checkpoints.wait_quietly` is such a function.
"""


def halt_on_divergence(newest: Newest, *, patience: int = 100) -> Writer:
    """Return a writer that ends the run when a reported loss is not finite.

    All processes must use the writer, because all of them must stop. Reports in which all updates were
    skipped (`skip_exploding`) are ignored, until all updates of more than `patience` steps were skipped.

    Raises (when called):
      DivergedError: The loss is not finite, or too many updates were skipped. The message names the
        checkpoint that a restart would use.
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
    """Return a function `(step, state)` that raises an error if the state is not finite.

    Use it as `Checkpoints.check_state`. It checks the parameters that `optimizer` trains, and the arrays of
    the optimizer that belong to one of them, such as moments and averages. Frozen parameters, the model state
    and scalars of the optimizer may be infinite.

    Collective, on the devices. Only one boolean for each array is copied to the host.

    Raises (when called):
      DivergedError: Some arrays are not finite. The message names them, and the checkpoint that a restart
        would use.

    Example:
      >>> optimizer, layout = optax.sgd(0.1), mw.Layout(mw.make_mesh("data=-1"))
      >>> state = mw.training.state_from({"w": jnp.array([1.0, jnp.nan])}, optimizer, 0, layout)
      >>> try:
      ...     mw.training.check_finite(optimizer, lambda: 100)(200, state)
      ... except mw.errors.DivergedError as error:
      ...     print(str(error).splitlines()[0])
      the state after step 200 is not finite: params/w; it is not saved.
    """

    def check(step: int, state: TrainState) -> None:
        if wrong := not_finite(optimizer, state):
            raise _diverged(f"the state after step {step} is not finite: {listed(wrong)}", newest(), step)

    return check


def not_finite(optimizer: Tx, state: TrainState) -> list[str]:
    """Return the names of the arrays that `check_finite` would refuse. Collective, on the devices."""
    arrays, wait, flags = _trained(optimizer, state), at_most_ahead(), {}
    for name, x in arrays.items():
        flags[name] = _is_finite(x)
        wait(flags[name])
    return [name for name, is_finite in jax.device_get(flags).items() if not is_finite]


@jax.jit
def _is_finite(x: jax.Array) -> jax.Array:
    # One program per array: a program for all of them takes long to compile, a minute for 10,000 arrays.
    return jnp.isfinite(on_devices(x)).all()


def _trained(optimizer: Tx, state: TrainState) -> dict[str, jax.Array]:
    """Return by name the trained parameters and the arrays of the optimizer that belong to one of them."""
    params = tree.named_leaves(as_trainable(optimizer).split(state.params)[0])

    def is_beside(name: str, x: jax.Array) -> bool:
        parameter = parameter_of(name, params)
        return parameter is not None and (x.ndim > 0 or params[parameter].ndim == 0)

    beside_params = {name: x for name, x in tree.named_leaves(state.opt_state).items() if is_beside(name, x)}
    return _inexact("params", params) | _inexact("opt_state", beside_params)


def _inexact(prefix: str, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    floating = {name: x for name, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.inexact)}
    return {f"{prefix}/{name}".rstrip("/"): x for name, x in floating.items()}


def _diverged(problem: str, newest: int | None, step: int | None = None) -> DivergedError:
    if newest is not None and newest == step:
        return DivergedError(
            f"{problem}.\n  The newest checkpoint contains this state: delete the checkpoint, and the run "
            "continues from the one before."
        )
    saved = "none" if newest is None else f"step {newest}"
    return DivergedError(
        f"{problem}; it is not saved.\n  The newest checkpoint: {saved}. `meshwright nan RUN` finds the "
        "operation and the examples, if this is a run of an Experiment. Lower the learning rate, clip the "
        "gradients, or look at the data since then. If a parameter is infinite on purpose, freeze it with "
        "`mw.training.Trainable`."
    )
