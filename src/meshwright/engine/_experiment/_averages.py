"""Checkpoints opened with the averages of the parameters in the place of the parameters."""

from collections.abc import Mapping

from meshwright.checkpoints._internal import LazyArray, Source, as_source, open_source
from meshwright.errors import CheckpointError


def open_averages(path: str | Source) -> Source:
    """Open a checkpoint with the averages of `mw.training.keep_ema` in the place of the parameters.

    The averages may be anywhere in the optimizer's state. They have the dtypes of the parameters. All other
    arrays are those of the checkpoint.

    Args:
      path: A path or URL, as `open_source` takes it; or an open checkpoint, such as
        `mw.checkpoints.open_best` returns.

    Raises:
      CheckpointError: The checkpoint has no averages, or it cannot be opened.

    Example:
      >>> optimizer = optax.chain(optax.sgd(0.1), mw.training.keep_ema(0.9))
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, mw.training.state_from({"w": jnp.ones(2)}, optimizer, 0, layout))
      >>> np.asarray(mw.engine.open_averages("run").arrays()["params/w"])
      array([1., 1.], dtype=float32)
    """
    source = open_source(path) if isinstance(path, str) else path
    arrays = source.arrays()
    averages = _averages(arrays)
    if not averages:
        raise CheckpointError(
            f"{source} has no averages of its parameters.\n  A run keeps them with `keep_ema(0.999)` "
            "last in its optimizer. Open the parameters themselves with `open_source`."
        )
    return as_source({**arrays, **averages}, f"the averages of {source}")


def has_averages(source: Source) -> bool:
    """Return whether a checkpoint has averages of its parameters, which `mw.training.keep_ema` kept.

    Example:
      >>> mw.engine._internal.has_averages(mw.checkpoints.as_source({"params/w": np.ones(2)}, "mine"))
      False
    """
    return bool(_averages(source.arrays()))


def _averages(arrays: Mapping[str, LazyArray]) -> dict[str, LazyArray]:
    """Return the averages of each `EmaState`, by the names of the parameters."""
    found = {
        f"params/{name.removeprefix(kept)}": x
        for kept in _places(arrays)
        for name, x in arrays.items()
        if name.startswith(kept)
    }
    return {name: found[name].astype(x.dtype) for name, x in arrays.items() if name in found}


def _places(arrays: Mapping[str, LazyArray]) -> list[str]:
    """Return the prefixes of the names of averages, such as `opt_state/1/ema/`. Each has a `mass` beside
    it.
    """
    states = [name.removesuffix("/mass") for name in arrays if name.endswith("/mass")]
    return [f"{state}/ema/" for state in states if state.split("/")[0] == "opt_state"]
