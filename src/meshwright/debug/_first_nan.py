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
from meshwright.debug._origin import Input, Origin, first_made, origin
from meshwright.debug._steps import (
    BadStep,
    Played,
    badness,
    first_bad_step,
    guilty_rows,
    last_reported,
    opened,
)
from meshwright.debug._words import (
    act_of,
    chain_of,
    direction_of,
    input_text,
    layer_of,
    lines_of,
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
Source = Origin | Input


@documented
@dataclass(frozen=True)
class Link:
    """An operation, or an input, from which a value that is not finite comes."""

    what: str
    """The event in words, such as `the logarithm of -1 (float32) is NaN`."""
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
    chain: Sequence[Link]
    """The sources, in the order in which they happened. Empty if the step, computed operation by operation,
    is finite."""
    rows: Sequence[int] | None
    """The rows of the batch that make the step not finite, each alone; all rows if it is not the examples.
    None if only several rows together do. There may be more rows if `are_all_rows` is False."""
    are_all_rows: bool
    """False if so many rows do it that not all were tried, but 200 batches of some of the rows."""
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
        for number, link in enumerate(self.chain):
            lines += ["", *_link_lines(link, "first" if number == 0 else "then")]
        if not self.chain:
            lines += [
                "",
                "  computed operation by operation, the step is finite: XLA's fusion of operations does it",
            ]
        lines += ["", f"  examples  {self._rows_text()}"]
        lines += [f"  device    {_by_device(self.devices)}"] if self.devices else []
        lines += [
            f"  batch     {self.batch}",
            *(f"            {name} {x}" for name, x in self.arrays.items()),
        ]
        return "\n".join(lines)

    def _rows_text(self) -> str:
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
    workdir = experiment.workdir if run is None else str(run)
    with opened(experiment, workdir) as played:
        last = until or last_reported(workdir) or played.training.last_step()
        begun_at = int(played.state.step)
        bad_step, _ = first_bad_step(played, last)
        if bad_step is None:
            return None
        return _explained(played, bad_step, begun_at, _directory(workdir, to))


def _explained(played: Played, bad_step: BadStep, begun_at: int, directory: Path) -> FirstNan:
    source = _source(played, bad_step)
    rows, are_all_rows = guilty_rows(badness(played, bad_step.state), bad_step.batch)
    size = len(jax.tree.leaves(bad_step.batch)[0])
    numbers = examples_at(position_of_data(bad_step.position), size)
    examples = [] if rows is None or numbers is None else [int(numbers[row]) for row in rows]
    is_bad = any(name == "loss" for name in bad_step.wrong)
    explained = FirstNan(
        step=bad_step.step,
        begun_at=begun_at,
        wrong=bad_step.wrong,
        chain=[_link(x, loss_is_bad=is_bad) for x in chain_of(source)],
        rows=rows,
        are_all_rows=are_all_rows,
        batch_size=size,
        examples=examples,
        devices=_devices(played, rows, size, source),
        batch=str(directory / f"step_{bad_step.step:08d}.npz"),
        arrays=_array_texts(bad_step.batch, rows if rows is not None and len(rows) < size else None),
    )
    _write(explained, bad_step.batch)
    return explained


def _source(played: Played, bad_step: BadStep) -> Source | None:
    """Return the source of what is not finite, in the step's own program."""
    step = played.training.step
    program, (state, metrics) = step.jaxpr, step.returned
    arguments = jax.tree.leaves((bad_step.state, bad_step.batch))
    names = tree.leaf_names({"": bad_step.state}) + tree.leaf_names({"batch": bad_step.batch})
    named = {number: name.removeprefix("/") for number, name in enumerate(names)}
    num_state = len(jax.tree.leaves(state))
    results: list[tuple[int, tuple[int, ...] | None]] = []
    for name in ("loss", "grad_norm"):
        # `means` is the first array of packed metrics: totals, then counts.
        if name in metrics.mean_names:
            results += [(num_state, (part, metrics.mean_names.index(name))) for part in (0, 1)]
    leaf_numbers = {name: number for number, name in enumerate(tree.leaf_names(state))}
    results += [(number, None) for name, number in leaf_numbers.items() if name in bad_step.wrong]
    results += [(num_state, None)]
    with in_mesh(played.training.layout.mesh):
        source = origin(program, arguments, results, named)
        if source is None and "skipped" in bad_step.wrong:
            return first_made(program, arguments, named)
        return source


def _link(source: Source, *, loss_is_bad: bool) -> Link:
    if isinstance(source, Input):
        return Link(input_text(source), "", "", "", "input", "", (), [source.name] if source.name else [])
    line, library = lines_of(source.eqn)
    return Link(
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
        indices = played.training.layout.batch_sharding.devices_indices_map((size,))
        by_device = {
            _device(device): [row for row in rows if row in range(size)[index[0]]]
            for device, index in indices.items()
        }
        return {device: rows for device, rows in by_device.items() if rows}
    if not isinstance(source, Origin):
        return {}
    x = source.results[source.out]
    shards = getattr(x, "addressable_shards", ())
    return {
        _device(shard.device): []
        for shard in shards
        if not np.isfinite(np.asarray(shard.data, np.float32)).all()
    }


def _device(device: jax.Device) -> str:
    return f"{device.platform}:{device.id}"


def _array_texts(batch: PyTree, rows: Sequence[int] | None) -> dict[str, str]:
    texts = {}
    for name, leaf in tree.named_leaves(batch).items():
        x = np.asarray(leaf)
        guilty = "" if rows is None else f"; in these rows {values_of(x[list(rows)])}"
        texts[name or "batch"] = f"{x.dtype}{list(x.shape)}: {values_of(x)}{guilty}"
    return texts


def _directory(run: str, target: str | Path | None) -> Path:
    if target is not None:
        return local_path(target)
    return Path("nan") if is_address(run) else local_path(run) / "nan"


def _write(report: FirstNan, batch: PyTree) -> None:
    """Write the batch, and beside it everything that was found."""
    path = Path(report.batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name or "batch": np.asarray(x) for name, x in tree.named_leaves(batch).items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    path.with_suffix(".json").write_text(json.dumps(report.document(), indent=2) + "\n", encoding="utf-8")


def _link_lines(link: Link, word: str) -> list[str]:
    scopes = [_PARTS[link.part], link.layer, *link.loops]
    places = [
        ("at", link.line and f"{link.line}{f' ({link.library_line})' if link.library_line else ''}"),
        ("in", ", ".join(scope for scope in scopes if scope)),
        ("reads", _some(link.parameters)),
    ]
    lines = [f"  {word + ':':8}{link.what}"]
    return [*lines, *(f"          {name:5} {text}" for name, text in places if text)]


def _some(names: Sequence[Any]) -> str:
    text = ", ".join(str(name) for name in names[:_MOST_NAMED])
    return f"{text}, … ({len(names)})" if len(names) > _MOST_NAMED else text


def _by_device(devices: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(
        f"{device}{f' (rows {_some(rows)})' if rows else ''}" for device, rows in devices.items()
    )
