"""Compute the gradient of a loss over a batch, in one piece or in microbatches with exact weights."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import PyTree, in_order, tree
from meshwright.errors import UsageError
from meshwright.observe._internal import Histogram, Mean, widened
from meshwright.program._internal import as_function

Metrics = Mapping[str, Mean | Histogram]
"""The metrics of one step by name, on the devices."""
REPORTED = ("step", "time")
"""The names in a report that are not metrics."""
RESERVED = ("loss", "grad_norm", "skipped", *REPORTED)
"""The names in a report that the metrics of a loss must not use."""

Loss = (
    Callable[[PyTree, PyTree, jax.Array], Any]
    | Callable[[PyTree, PyTree], Any]
    | Callable[[PyTree, PyTree, jax.Array, jax.Array], Any]
)
"""A function `(params, batch, key) -> loss` or `(params, batch, key) -> (loss, metrics)`.

A loss that uses no randomness may leave out the key: `(params, batch)`. An argument `step` gets the step of
the state, int32[], 0 in the first update. Arguments of its own have a default, which they keep.

The arrays of the batch have the shape [batch, ...]; with microbatches the loss is called with each
microbatch, which has fewer rows. The loss is a scalar, the mean over the batch, or a `Mean(total, count)`.
The totals and counts of microbatches are added before the division, so that padding and masks get exact
weights. Metrics are a dictionary `{name: Mean, scalar or Histogram}`.
"""

StatefulLoss = (
    Callable[[PyTree, PyTree, jax.Array, PyTree], tuple[Any, Mapping[str, Any], PyTree]]
    | Callable[[PyTree, PyTree, PyTree], tuple[Any, Mapping[str, Any], PyTree]]
)
"""A function `(params, batch, key, model_state) -> (loss, metrics, new model_state)` of a model with a state.

A loss that uses no randomness may leave out the key: `(params, batch, model_state)`. The model state is not
differentiated. The new state must have the structure, shapes and dtypes of the old one.
"""

Objective = Callable[..., tuple[jax.Array, tuple[Metrics, PyTree]]]
"""A function `(params, model_state, batch, key, step) -> (total, (metrics, model_state))`.

It returns the total of either kind of loss, not the mean. The state of a model without a state is None.
"""


def objective(loss: Loss | StatefulLoss) -> Objective:
    """Return the function to differentiate. The metrics that it returns also contain the loss.

    Raises (when called):
      UsageError: The loss returned a value of the wrong type or shape.
    """

    def total(
        params: PyTree, model_state: PyTree, batch: PyTree, key: jax.Array, step: jax.Array
    ) -> tuple[jax.Array, tuple[Metrics, PyTree]]:
        if model_state is None:
            value, metrics = _split(of_loss(loss, params, batch, key, step=step))
        else:
            value, metrics, new = _split_three(of_loss(loss, params, batch, key, model_state, step=step))
            model_state = _like(model_state, new)
        _check_metrics(metrics)
        mean = as_mean("loss", value)
        all_metrics = {"loss": mean} | {name: as_metric(name, metric) for name, metric in metrics.items()}
        return jnp.asarray(mean.total), (all_metrics, model_state)

    return total


def of_loss(
    loss: Callable[..., Any], params: PyTree, batch: PyTree, key: jax.Array, *model_state: PyTree, step: Any
) -> Any:
    """Call a loss, with the key and the step if the loss takes them, and return its result."""
    values = {"params": params, "batch": batch, "key": key}
    values |= zip(["model_state"], model_state, strict=False)  # where there is one
    hint = "\n  Write lambda params, batch: ((batch['x'] @ params['w']) ** 2).mean()."
    called = in_order(loss, values, "loss", named={"step": step}, optional="key", hint=hint)
    try:
        return called()
    except TypeError as error:
        if "same dtypes" in str(error):
            error.add_note("If compute_dtype casts the parameters, cast the examples in the loss, too.")
        raise


def mean_gradients(
    objective: Objective,
    params: PyTree,
    model_state: PyTree,
    batch: PyTree,
    key: jax.Array,
    microbatches: int,
    *,
    at_once: bool = False,
) -> tuple[PyTree, Metrics, PyTree]:
    """Return the gradients over the whole batch, the metrics and the new model state.

    The gradients have the dtypes of the parameters. Gradients of complex parameters are the conjugates of
    those that `jax.grad` returns, so that an optimizer which subtracts them makes the loss smaller.

    Microbatches are computed one after the other, so only one of them needs memory at a time. Totals, counts
    and gradients are added in at least float32 and are divided once, at the end. Each microbatch uses the
    model state that the microbatch before it returned. With `at_once` the objective itself takes all of
    them, as `over_pipeline` makes it. The objective has the step already: it is that of all microbatches.
    """
    differentiate = jax.grad(objective, has_aux=True)
    if at_once:
        grads, (metrics, model_state) = differentiate(params, model_state, batch, key)
    elif microbatches == 1:
        first = jax.random.fold_in(key, 0)
        grads, (metrics, model_state) = differentiate(params, model_state, batch, first)
    else:
        (grads, metrics), model_state = _accumulated(
            differentiate, params, model_state, batch, key, microbatches
        )
    count = jnp.asarray(cast(Mean, metrics["loss"]).count)
    scale = jnp.where(count > 0, 1 / jnp.where(count > 0, count, 1), 0)
    grads = jax.tree.map(lambda g, p: jnp.conj(g * scale).astype(p.dtype), grads, params)
    return grads, metrics, model_state


def _accumulated(
    differentiate: Callable[..., tuple[PyTree, tuple[Metrics, PyTree]]],
    params: PyTree,
    model_state: PyTree,
    batch: PyTree,
    key: jax.Array,
    microbatches: int,
) -> tuple[tuple[PyTree, Metrics], PyTree]:
    if len({x.shape[0] for x in jax.tree.leaves(batch)}) > 1:
        shapes = ", ".join(f"{name or 'batch'} {x.shape}" for name, x in tree.named_leaves(batch).items())
        raise UsageError(
            f"microbatches={microbatches} cuts each array of a batch along its first dimension, so all must "
            f"have as many rows: {shapes}.\n  Give an example of the batch one row in each array, or leave "
            "out microbatches."
        )
    pieces = jax.tree.map(lambda x: _striped(x, microbatches), batch)

    def microbatch(model_state: PyTree, i: jax.Array, piece: PyTree) -> tuple[PyTree, PyTree]:
        grads, (metrics, model_state) = differentiate(params, model_state, piece, jax.random.fold_in(key, i))
        wide = jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), grads)
        return (wide, metrics), model_state

    # Traced only once: for the shapes of the sums, and for the loop.
    numbers = jnp.arange(microbatches)
    first = jax.tree.map(lambda x: x[0], (numbers, pieces))
    jaxpr, out = jax.make_jaxpr(microbatch, return_shape=True)(model_state, *first)
    computed = as_function(jaxpr, out)

    def add(carry: tuple[PyTree, PyTree], numbered: tuple[jax.Array, PyTree]) -> tuple[PyTree, None]:
        sums, model_state = carry
        piece_sums, model_state = computed(model_state, *numbered)
        return (
            jax.tree.map(operator.add, sums, piece_sums, is_leaf=lambda x: isinstance(x, Mean | Histogram)),
            model_state,
        ), None

    # Zeros of the structs are split as the gradients are, where axes are explicit.
    zeros = jax.tree.map(jnp.zeros_like, out[0])
    return jax.lax.scan(add, (zeros, model_state), (numbers, pieces))[0]


def _striped(x: jax.Array, n: int) -> jax.Array:
    """Reshape [n * B, ...] to [n, B, ...] in stripes, so that each piece stays split over all devices."""
    return x.reshape(x.shape[0] // n, n, *x.shape[1:]).swapaxes(0, 1)


def _split(returned: Any) -> tuple[Any, Mapping[str, Any]]:
    value, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    if not isinstance(metrics, Mapping):
        raise UsageError(
            f"the loss returned (loss, {type(metrics).__name__}); the second value must be a dictionary of "
            "metrics.\n  Return the loss alone, or (loss, {'name': scalar or Mean})."
        )
    return value, metrics


def _split_three(returned: Any) -> tuple[Any, Mapping[str, Any], PyTree]:
    if isinstance(returned, tuple) and len(returned) == 3 and isinstance(returned[1], Mapping):
        return returned
    parts = ", ".join(type(part).__name__ for part in returned) if isinstance(returned, tuple) else ""
    outline = f"({parts})" if parts else f"a value of type {type(returned).__name__}"
    raise UsageError(
        f"the loss of a model with a state must return three values; it returned {outline}.\n"
        "  Return (loss, {'name': scalar or Mean}, new model_state). Use {} if there are no metrics."
    )


def _like(model_state: PyTree, new: PyTree) -> PyTree:
    """Return the arrays of `new` in the structure of `model_state`, after checking that they match.

    The next step is compiled for that structure. Empty containers of `new`, such as `{"a": {"b": {}}}`, are
    therefore left out.
    """
    changes = tree.differences({"model_state": model_state}, {"model_state": new})
    if changes:
        raise UsageError(
            f"the model state that the loss returned differs from the one it received: {changes}.\n"
            "  Return a state with the same structure, shapes and dtypes; `x.astype(old.dtype)` casts."
        )
    leaves = tree.named_leaves(new)
    return tree.map_named(lambda name, old: jnp.asarray(leaves[name], old.dtype), model_state)


def _check_metrics(metrics: Mapping[str, Any]) -> None:
    reserved = [name for name in metrics if name in RESERVED]
    if reserved:
        raise UsageError(
            f"the loss returned a metric called {reserved[0]!r}, but this name is reserved.\n"
            f"  Rename the metric. The reserved names are {', '.join(RESERVED)}."
        )


def as_metric(name: str, value: Any) -> Mean | Histogram:
    """Return a `Histogram` unchanged, or a `Mean` made from any other value by `as_mean`."""
    if not isinstance(value, Histogram):
        return as_mean(name, value)
    if jnp.ndim(value.parts) != 1:
        raise UsageError(
            f"{name} must be one Histogram, but `scan` or `vmap` made it an array of the shape "
            f"{list(jnp.shape(value.parts)[:-1])}.\n"
            "  Return `.summed()`, or give each histogram its own name."
        )
    return value


def as_mean(name: str, value: Any) -> Mean:
    """Return a scalar as a `Mean` with the count 1, or a `Mean` unchanged, in at least float32."""
    remedy = "Return losses.mean(), or mw.Mean.of(losses, weights) to weigh examples or tokens."
    if not isinstance(value, Mean | jax.Array | np.ndarray | np.generic | float | int):
        description = (
            "None: does it end without `return`?" if value is None else f"of type {type(value).__name__}."
        )
        raise UsageError(f"{name} must be a scalar or a Mean of scalars; it is {description}\n  {remedy}")
    mean = value if isinstance(value, Mean) else Mean(jnp.asarray(value), 1)
    if jnp.shape(mean.total) or jnp.shape(mean.count):
        raise UsageError(
            f"{name} must be a scalar or a Mean of scalars; it has shape {jnp.shape(mean.total)}.\n  {remedy}"
        )
    return Mean(widened(mean.total, name), widened(mean.count, name))
