"""Opens checkpoints of any known format."""

import itertools
from collections.abc import Mapping, Sequence

from meshwright.base._internal import Directory, location
from meshwright.checkpoints._arrays._source import Opened
from meshwright.checkpoints._choice import checkpoints_of
from meshwright.checkpoints._directory import (
    complete_steps,
    saved_steps,
    set_aside_names,
    step_path,
    temporaries,
)
from meshwright.checkpoints._exports import UNFINISHED
from meshwright.checkpoints._format._manifest import MANIFEST
from meshwright.checkpoints._format._read import NativeSource, errors_naming_unreadable
from meshwright.checkpoints._format._verify import incomplete
from meshwright.checkpoints._formats.readers import READERS
from meshwright.checkpoints._formats.readers._orbax import TEMPORARY as ORBAX_TEMPORARY
from meshwright.checkpoints._formats.readers._reader import Reader, opened
from meshwright.checkpoints._formats.readers._seqax import is_flat_tokens, splits_of
from meshwright.errors import CheckpointError, DamagedError, UsageError, listed

_FORMATS = f"\n  Known formats: {', '.join(['Meshwright', *(reader.name for reader in READERS)])}."


@errors_naming_unreadable()
def open_source(path: str | Directory, *, step: int | None = None, verify: bool = True) -> Opened:
    """Open a checkpoint of any known format; no array data is read yet.

    The format is detected from the content. If the newest checkpoint of a directory that has a manifest is
    damaged, an error names the newest intact one, which `Checkpoints.resume` would take instead.

    Args:
      path: A file, a step directory, a directory of checkpoints or the directory of a run; local or in a
        store. Of several checkpoints the newest is opened.
      step: The step to open, instead of the newest.
      verify: Compare all data that is read with its checksums, if the format has them. Without it, damage to
        the data goes unnoticed.

    Raises:
      CheckpointError: There is no complete checkpoint of a known format, or none of `step`, or its format
        version is too new.
      DamagedError: The files that describe the checkpoint are damaged.
      UsageError: A package that reads the format is not installed, or `step` was given for a path that is one
        checkpoint.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, {"params": {"w": jnp.ones((2, 3))}})
      >>> source = mw.checkpoints.open_source("run")
      >>> source.step, source.arrays()["params/w"].shape
      (100, (2, 3))
    """
    directory = location(path) if step is None else find_step(path, step)
    ours = _native_at(directory)
    # A run directory holds its checkpoints elsewhere, in a folder or a store that it names.
    if not ours and (run := _of_run(directory)):
        return open_source(run, verify=verify)
    if not ours:
        return _foreign(directory)
    # An older checkpoint is not opened instead: the caller asked for the newest, and gets it or an error.
    *older, newest = ours
    try:
        return NativeSource(newest, verify=verify)
    except DamagedError as error:
        raise DamagedError(f"{error}{_instead_of_it(older)}") from None


@errors_naming_unreadable()
def find_step(path: str | Directory, step: int) -> Directory:
    """Return the path of a step's checkpoint in a directory of checkpoints of any format.

    Args:
      path: The directory of checkpoints or of a run, local or in a store.
      step: The step.

    Raises:
      CheckpointError: The step has no complete checkpoint; the error lists those that do.
      UsageError: `path` is itself a checkpoint.

    Example:
      >>> with mw.Checkpoints("run") as checkpoints:
      ...     checkpoints.save(100, {"w": jnp.ones(3)})
      >>> mw.checkpoints.find_step("run", 100).name
      'step_00000100'
    """
    directory = location(path)
    steps = steps_at(directory)
    if step in steps:
        return steps[step]
    if not steps and ((directory / MANIFEST).is_file() or reader_of(directory)):
        raise UsageError(f"{directory} is a single checkpoint: leave out step={step}.")
    if not steps and (run := _of_run(directory)):
        return find_step(run, step)
    if not steps:
        raise CheckpointError(f"{directory} {_what_instead(directory)}")
    description = step_path(directory, step) if _native_at(directory) else f"step {step} of {directory}"
    raise CheckpointError(
        f"{description} is not a complete checkpoint; there are {listed(map(str, steps), 20)}."
    )


def steps_at(path: Directory) -> Mapping[int, Directory]:
    """Return the paths of the complete checkpoints in a directory, by step, the lowest first.

    If `path` is itself a checkpoint, there are none.
    """
    if (path / MANIFEST).is_file():
        return {}
    if ours := complete_steps(path):
        return {step: step_path(path, step) for step in ours}
    reader = reader_of(path)
    return reader.steps(path) if reader else {}


@errors_naming_unreadable()
def checkpoints_at(path: str | Directory) -> list[Directory]:
    """Return the paths of the checkpoints in a directory, the lowest step first, or of the one at `path`."""
    directory = location(path)
    if steps := [step_path(directory, step) for step in saved_steps(directory)] or [
        *steps_at(directory).values()
    ]:
        return steps
    if (directory / MANIFEST).is_file() or reader_of(directory):
        return [directory]
    raise CheckpointError(f"{directory} {_what_instead(directory)}")


def _of_run(path: Directory) -> Directory | None:
    """Return where the checkpoints of a run are; None if `path` is no run."""
    directory = checkpoints_of(str(path))
    return None if reader_of(path) or directory == str(path) else location(directory)


def _native_at(directory: Directory) -> list[Directory]:
    if (directory / MANIFEST).is_file():
        return [directory]
    return [step_path(directory, step) for step in complete_steps(directory)]


def _foreign(path: Directory) -> Opened:
    reader = reader_of(path)
    if reader is None:
        raise CheckpointError(f"{path} {_what_instead(path)}")
    return opened(reader, path)


def reader_of(path: Directory) -> Reader | None:
    """Return the reader for another system's checkpoint, or a directory of them; None if there is none."""
    return next((reader for reader in READERS if reader.recognises(path)), None)


def _instead_of_it(others: Sequence[Directory]) -> str:
    """Return advice about other checkpoints, as far as can be seen without reading their data."""
    whole = next((path for path in reversed(others) if not incomplete(path)), None)
    if whole is None:
        return " No other checkpoint in its directory is complete." if others else ""
    return (
        f"\n  The newest other one that looks complete is {whole.name}: open_source({str(whole)!r}). "
        f"`meshwright verify {whole.parent}` checks all of them."
    )


def _what_instead(path: Directory) -> str:
    """Return what `path`, which is not a checkpoint, is instead."""
    if not path.is_dir():
        return f"is not a checkpoint.{_FORMATS}" if path.exists() else "does not exist."
    if damaged := set_aside_names(path):
        return f"has no complete checkpoint, only {damaged[-1]}, which was found damaged and set aside."
    if is_flat_tokens(path) or (splits := splits_of(path)):
        split = path if is_flat_tokens(path) else path / splits[0]
        return (
            "is no checkpoint: it has training data of seqax, flat tokens.\n"
            f"  Read them by mw.checkpoints.flat_tokens({str(split)!r}, …)."
        )
    half_written = "Either a save is still running (call `wait()` first), or its run was killed."
    if any(path.glob("data-*.zarr.zip")):
        return f"has data files but no {MANIFEST}. {half_written}"
    begun = (f"*{ORBAX_TEMPORARY}*", f".*{UNFINISHED}")
    if unfinished := [*temporaries(path), *itertools.chain.from_iterable(map(path.glob, begun))]:
        return f"has no complete checkpoint, only the unfinished {unfinished[-1].name}. {half_written}"
    entries = listed(sorted(entry.name for entry in path.iterdir())) or "nothing"
    return (
        "is not a checkpoint, nor a directory of checkpoints (step_00000800 and so on). It holds "
        f"{entries}.{_FORMATS}"
    )
