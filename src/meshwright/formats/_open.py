"""Checkpoints are opened, whatever wrote them."""

import itertools
from collections.abc import Mapping, Sequence

from meshwright.arrays import Opened
from meshwright.checkpoint import (
    MANIFEST,
    UNFINISHED,
    NativeSource,
    aside,
    complete_steps,
    incomplete,
    step_path,
    temporaries,
)
from meshwright.errors import CheckpointError, DamagedError, UsageError, listed
from meshwright.formats.readers import ORBAX_TEMPORARY, READERS, Reader, opened
from meshwright.storage import Directory, location, telling_unreadable

_KNOWN = f"\n  Formats that are known: {', '.join(['our own', *(reader.name for reader in READERS)])}."


@telling_unreadable()
def open_source(path: str | Directory, *, step: int | None = None, verify: bool = True) -> Opened:
    """Open a checkpoint, whatever wrote it: a file, a step directory, or the newest in a directory of them.

    The format is seen from the content. Of a directory `step` chooses another than the newest. `verify`
    compares what is read with its checksums, where the format has them. Without it damage to the data goes
    unnoticed. Where the newest is damaged no older one is taken instead, as `Checkpoints.resume` does: the
    error says which there is.

    Raises:
      CheckpointError: There is no complete checkpoint of a known format, or none of `step`, or it is too new.
      DamagedError: What says what it holds is damaged.
      UsageError: A package that reads it is not installed, or the path is of one step, and `step` is given.
    """
    place = location(path) if step is None else find_step(path, step)
    ours = _native_at(place)
    if not ours:
        return _foreign(place)
    *older, newest = ours
    try:
        return NativeSource(newest, verify=verify)
    except DamagedError as error:
        raise DamagedError(f"{error}{_instead_of_it(older)}") from None


@telling_unreadable()
def find_step(path: str | Directory, step: int) -> Directory:
    """Return where the checkpoint of a step lies in a directory of checkpoints, whatever wrote them.

    Raises:
      CheckpointError: There is none; those that there are are listed.
      UsageError: The path is of one checkpoint.
    """
    place = location(path)
    steps = steps_at(place)
    if step in steps:
        return steps[step]
    if not steps and ((place / MANIFEST).is_file() or reader_of(place)):
        raise UsageError(f"{place} is one checkpoint, so the path says which: leave out the step, {step}.")
    if not steps:
        raise CheckpointError(f"{place} {_what_instead(place)}")
    what = step_path(place, step) if _native_at(place) else f"step {step} of {place}"
    raise CheckpointError(f"{what} is no complete checkpoint; there are {listed(map(str, steps), 20)}.")


def steps_at(place: Directory) -> Mapping[int, Directory]:
    """Return where the complete checkpoints of a directory are, by step, the lowest first.

    There are none where the place is a checkpoint itself.
    """
    if (place / MANIFEST).is_file():
        return {}
    if ours := complete_steps(place):
        return {step: step_path(place, step) for step in ours}
    reader = reader_of(place)
    return reader.steps(place) if reader else {}


@telling_unreadable()
def checkpoints_at(path: str | Directory) -> list[Directory]:
    """Return where the checkpoint at `path` is, or those in it, the oldest first, whatever wrote them.

    Raises:
      CheckpointError: There is no complete checkpoint.
    """
    place = location(path)
    if steps := steps_at(place):
        return list(steps.values())
    if (place / MANIFEST).is_file() or reader_of(place):
        return [place]
    raise CheckpointError(f"{place} {_what_instead(place)}")


def _native_at(directory: Directory) -> list[Directory]:
    if (directory / MANIFEST).is_file():
        return [directory]
    return [step_path(directory, step) for step in complete_steps(directory)]


def _foreign(place: Directory) -> Opened:
    reader = reader_of(place)
    if reader is None:
        raise CheckpointError(f"{place} {_what_instead(place)}")
    return opened(reader, place)


def reader_of(place: Directory) -> Reader | None:
    """Return what reads another system's checkpoint, or those in a directory; None where there is none."""
    return next((reader for reader in READERS if reader.recognises(place)), None)


def _instead_of_it(others: Sequence[Directory]) -> str:
    """Say which other checkpoint there is, as far as can be seen without reading its data."""
    whole = next((path for path in reversed(others) if not incomplete(path)), None)
    if whole is None:
        return " No other in its directory is whole." if others else ""
    return (
        f"\n  The newest of the others that looks whole is {whole.name}: open_source({str(whole)!r}). "
        f"`meshwright verify {whole.parent}` reads all of them."
    )


def _what_instead(place: Directory) -> str:
    """Say what `place` is, as it is no checkpoint."""
    if not place.is_dir():
        return f"is no checkpoint.{_KNOWN}" if place.exists() else "does not exist."
    if damaged := aside(place):
        return f"holds no complete checkpoint, only {damaged[-1]}, which was found damaged and set aside."
    half_written = "Either a save is still running (call `wait()` first) or its run was killed."
    if any(place.glob("data-*.zarr.zip")):
        return f"has data files but no {MANIFEST}. {half_written}"
    begun = (f"*{ORBAX_TEMPORARY}*", f".*{UNFINISHED}")
    if unfinished := [*temporaries(place), *itertools.chain.from_iterable(map(place.glob, begun))]:
        return f"holds no complete checkpoint, only the unfinished {unfinished[-1].name}. {half_written}"
    found = listed(sorted(entry.name for entry in place.iterdir())) or "nothing"
    return (
        f"is no checkpoint, nor are there any in it called step_00000800 and so on. It holds {found}.{_KNOWN}"
    )
