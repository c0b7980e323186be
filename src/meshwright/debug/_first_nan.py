"""The first value of a run that is not finite: its step, operation, line, layer, examples and devices."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import PyTree, documented, is_address, local_path, tree
from meshwright.data._internal import examples_at
from meshwright.debug._origin import Given, Origin, first_made, origin
from meshwright.debug._rows import guilty_rows
from meshwright.debug._steps import BadStep, Played, badness, first_bad_step, last_reported, opened
from meshwright.debug._words import (
    act_of,
    chain_of,
    direction_of,
    given_as,
    layer_of,
    line_of,
    turns_of,
    values_of,
)
from meshwright.engine._internal import Experiment, position_of_data
from meshwright.parallel._internal import in_mesh
from meshwright.processes import _internal as processes

_MOST_NAMED = 8
_PARTS = {
    "forward": "the forward pass",
    "gradient": "the gradient",
    "update": "the update by the optimizer",
    "input": "",
}
Source = Origin | Given


@documented
@dataclass(frozen=True)
class Made:
    """An operation, or an input, from which a value that is not finite comes."""

    what: str
    """What happened, such as `the logarithm of -1 (float32) is NaN`."""
    operation: str
    """The name of JAX's primitive; "" for an input."""
    line: str
    """The line of the user's source, or of a library if no line of the user called it."""
    library_line: str
    """The line of a library that the user's line called; "" if there is none."""
    part: str
    """The part of the step: `forward`, `gradient`, `update` or `input`."""
    layer: str
    """The named scopes that it is in."""
    loops: Sequence[str]
    """The loops that it is in, with the iteration of each."""
    parameters: Sequence[str]
    """The parameters, or other inputs, that it reads or that are read closest before it."""


@documented
@dataclass(frozen=True)
class FirstNan:
    """The first step of a run whose result is not finite, and where that comes from."""

    step: int
    """The step, counted from 1."""
    begun_at: int
    """The step of the checkpoint from which the run was played again; 0 for the first state."""
    wrong: Sequence[str]
    """The names of what is not finite after the step."""
    chain: Sequence[Made]
    """The sources, in the order in which they happened. Empty if the step, computed operation by operation,
    is finite."""
    rows: Sequence[int] | None
    """The rows of the batch that make the step not finite, each alone; all rows if it is not the examples.
    None if only several rows together do. There may be more rows if `are_all_rows` is False."""
    are_all_rows: bool
    """False if so many rows do it that not all were tried: 200 batches of some of the rows are."""
    batch_size: int
    """The number of rows of the batch."""
    examples: Sequence[int]
    """The numbers of the examples in these rows, as far as they have numbers."""
    devices: Mapping[str, Sequence[int]]
    """The rows by the device that holds them, and no rows for a device that holds another array with such
    values."""
    batch: str
    """The file with the batch."""
    arrays: Mapping[str, str]
    """The arrays of the batch in words: dtype, shape and values, of all rows and of the guilty ones."""

    def document(self) -> dict[str, Any]:
        """Return everything as values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"step {self.step} is the first whose result is not finite: {_some(self.wrong)}"]
        lines.append(
            f"  played again from {'the first state' if not self.begun_at else f'step {self.begun_at}'}"
        )
        for number, made in enumerate(self.chain):
            lines += ["", *_told(made, "first" if number == 0 else "then")]
        if not self.chain:
            lines += [
                "",
                "  computed operation by operation, the step is finite: XLA's fusion of operations does it",
            ]
        lines += ["", f"  examples  {self._rows_told()}"]
        lines += [f"  device    {_by_device(self.devices)}"] if self.devices else []
        lines += [
            f"  batch     {self.batch}",
            *(f"            {name} {x}" for name, x in self.arrays.items()),
        ]
        return "\n".join(lines)

    def _rows_told(self) -> str:
        if self.rows is None:
            tried = "no row of the batch does it alone"
            return tried if self.are_all_rows else f"{tried} among those that were tried"
        if len(self.rows) == self.batch_size:
            return "every row of the batch does it: it is not the examples"
        numbers = f" (examples {_some(self.examples)})" if self.examples else ""
        least = "" if self.are_all_rows else "at least "
        return f"{least}rows {_some(self.rows)} of {self.batch_size}{numbers}"


@processes.collective()
def first_nan(
    experiment: Experiment,
    run: str | Path | None = None,
    *,
    until: int | None = None,
    to: str | Path | None = None,
) -> FirstNan | None:
    """Return where the first value of a run comes from that is not finite; None if all steps are finite.

    The run is played again, in this process, from its newest checkpoint. Nothing of the run changes, but the
    batch is written to a file. Values that are infinite on purpose, such as those of masks, are not blamed:
    the way leads back from the loss, the gradients and the new state.

    Args:
      experiment: The description of the run.
      run: The directory or URL of the run; None for the experiment's own.
      until: The last step to make. None stands for the last one that the run reported or, if it reported
        none, for the last of the experiment.
      to: The directory for the batch. None stands for the folder `nan` in the run directory.

    Raises:
      UsageError: The settings are wrong, or there are several processes.
      CheckpointError: A checkpoint does not fit the experiment.

    Example:
      >>> examples = {"y": np.array([1, 1, 0, 1, 1, 1, 1, 1], np.float32)}
      >>> experiment = mw.Experiment(
      ...     workdir="runs/log",
      ...     model=lambda key: {"w": jnp.ones(())},
      ...     loss=lambda params, batch: jnp.log(params["w"] * batch["y"]).mean(),
      ...     optimizer=optax.sgd(0.1),
      ...     input=mw.Input(examples, batch_size=8, shuffle=False),
      ...     max_steps=2,
      ... )
      >>> found = mw.debug.first_nan(experiment)
      >>> found.step, found.chain[0].operation, found.rows
      (1, 'log', [2])
    """
    place = experiment.workdir if run is None else str(run)
    with opened(experiment, place) as played:
        last = until or last_reported(place) or played.training.last_step()
        begun_at = int(played.state.step)
        found, _ = first_bad_step(played, last)
        if found is None:
            return None
        return _explained(played, found, begun_at, _directory(place, to))


def _explained(played: Played, found: BadStep, begun_at: int, directory: Path) -> FirstNan:
    source = _source(played, found)
    rows, are_all_rows = guilty_rows(badness(played, found.state), found.batch)
    size = len(jax.tree.leaves(found.batch)[0])
    numbers = examples_at(position_of_data(found.position), size)
    examples = [] if rows is None or numbers is None else [int(numbers[row]) for row in rows]
    is_bad = any(name == "loss" for name in found.wrong)
    explained = FirstNan(
        step=found.step,
        begun_at=begun_at,
        wrong=found.wrong,
        chain=[_made(each, loss_is_bad=is_bad) for each in chain_of(source)],
        rows=rows,
        are_all_rows=are_all_rows,
        batch_size=size,
        examples=examples,
        devices=_devices(played, rows, size, source),
        batch=str(directory / f"step_{found.step:08d}.npz"),
        arrays=_arrays_told(found.batch, rows if rows is not None and len(rows) < size else None),
    )
    _keep(explained, found.batch)
    return explained


def _source(played: Played, found: BadStep) -> Source | None:
    """Return the source of what is not finite, in the step's own program."""
    step = played.training.step
    program, (state, metrics) = step.jaxpr, step.returned
    arguments = jax.tree.leaves((found.state, found.batch))
    names = tree.leaf_names({"": found.state}) + tree.leaf_names({"batch": found.batch})
    named = {number: name.removeprefix("/") for number, name in enumerate(names)}
    num_state = len(jax.tree.leaves(state))
    results: list[tuple[int, tuple[int, ...] | None]] = []
    for name in ("loss", "grad_norm"):
        if name in metrics.mean_names:  # `means` is the first array of packed metrics: totals, then counts
            results += [(num_state, (part, metrics.mean_names.index(name))) for part in (0, 1)]
    results += [(number, None) for number, name in enumerate(tree.leaf_names(state)) if name in found.wrong]
    results += [(num_state, None)]
    with in_mesh(played.training.layout.mesh):
        source = origin(program, arguments, results, named)
        return (
            source
            if source is not None or "skipped" not in found.wrong
            else first_made(program, arguments, named)
        )


def _made(source: Source, *, loss_is_bad: bool) -> Made:
    if isinstance(source, Given):
        return Made(given_as(source), "", "", "", "input", "", (), [source.name] if source.name else [])
    line, library = line_of(source)
    return Made(
        what=act_of(source),
        operation=source.eqn.primitive.name,
        line=line,
        library_line=library,
        part=direction_of(source, loss_is_bad=loss_is_bad),
        layer=layer_of(source),
        loops=turns_of(source),
        parameters=list(source.near),
    )


def _devices(
    played: Played, rows: Sequence[int] | None, size: int, source: Source | None
) -> dict[str, list[int]]:
    """Return the devices that hold guilty rows or, if it is not some examples, the array that was made."""
    if rows is not None and len(rows) < size:
        held = played.training.layout.batch_sharding.devices_indices_map((size,))
        by_device = {
            _device(device): [row for row in rows if row in range(size)[index[0]]]
            for device, index in held.items()
        }
        return {device: rows for device, rows in by_device.items() if rows}
    if not isinstance(source, Origin):
        return {}
    x = source.results[source.out]
    shards = getattr(x, "addressable_shards", ())
    return {
        _device(each.device): []
        for each in shards
        if not np.isfinite(np.asarray(each.data, np.float32)).all()
    }


def _device(device: jax.Device) -> str:
    return f"{device.platform}:{device.id}"


def _arrays_told(batch: PyTree, rows: Sequence[int] | None) -> dict[str, str]:
    told = {}
    for name, leaf in tree.named_leaves(batch).items():
        x = np.asarray(leaf)
        guilty = "" if rows is None else f"; in these rows {values_of(x[list(rows)])}"
        told[name or "batch"] = f"{x.dtype}{list(x.shape)}: {values_of(x)}{guilty}"
    return told


def _directory(place: str, to: str | Path | None) -> Path:
    if to is not None:
        return local_path(to)
    return Path("nan") if is_address(place) else local_path(place) / "nan"


def _keep(found: FirstNan, batch: PyTree) -> None:
    """Write the batch, and beside it everything that was found."""
    path = Path(found.batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name or "batch": np.asarray(x) for name, x in tree.named_leaves(batch).items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    path.with_suffix(".json").write_text(json.dumps(found.document(), indent=2) + "\n", encoding="utf-8")


def _told(made: Made, word: str) -> list[str]:
    where = [_PARTS[made.part], made.layer, *made.loops]
    places = [
        ("at", made.line and f"{made.line}{f' ({made.library_line})' if made.library_line else ''}"),
        ("in", ", ".join(each for each in where if each)),
        ("reads", _some(made.parameters)),
    ]
    lines = [f"  {word + ':':8}{made.what}"]
    return [*lines, *(f"          {name:5} {text}" for name, text in places if text)]


def _some(names: Sequence[Any]) -> str:
    told = ", ".join(str(name) for name in names[:_MOST_NAMED])
    return f"{told}, … ({len(names)})" if len(names) > _MOST_NAMED else told


def _by_device(devices: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(
        f"{device}{f' (rows {_some(rows)})' if rows else ''}" for device, rows in devices.items()
    )
