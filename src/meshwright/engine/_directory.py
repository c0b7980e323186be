"""The run directory: it is opened, checked and locked here. This is the list of its files.

experiment.txt            the settings, one line each
attempts/step_….txt       the settings of each attempt, by the step from which it continued
attempts/went_back.jsonl  the times when the run went back to an earlier step; see `_earlier_steps.py`
experiment.json           how the run was started, for `meshwright resume`
state.txt                 the arrays of the state, the sharding of each, and their memory
began_from.txt            the checkpoints that the first state was made from, if there are any
programs.json             digests of the step's program; see `_run_files.py`
environment.json          versions, devices, mesh, commit, command line; where checkpoints are, if elsewhere
spikes.jsonl              the loss spikes that the run went back before; see `_spikes.py`
ledger.json               where the seconds of all attempts went; see `report/_ledger.py`
metrics.jsonl             the reports, one line each; other files and pages follow from them
events.out.tfevents…      the reports for TensorBoard
plugins/profile/step_…    profiles, if there are any, where TensorBoard looks for them
checkpoints/step_…        see docs/checkpoint-format.md
outputs/test/step_….jsonl the model's output for each example, of evaluations that store it
logs/process-00000.log    the log of each process
board/process-00000.json  where each process stands, while the run goes on; see `training/_heartbeat.py`
.run.lock                 locked by the run, so that no other run writes here
outcome.json              how the run ended; it is written at the end
report.html               a page that shows all of this; it is written at the end
"""

import contextlib
import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from meshwright.base._internal import FORMAT, is_address, local_path, mirrored
from meshwright.engine._errors import explaining_full_disk
from meshwright.engine._run_files import PROGRAMS
from meshwright.errors import UsageError
from meshwright.processes import _internal as processes
from meshwright.report._internal import LEDGER, SPIKES, WENT_BACK
from meshwright.training._internal import compile_cache, nothing, user_compile_cache

_FILES = (
    "experiment.txt",
    "experiment.json",
    "state.txt",
    "began_from.txt",
    "environment.json",
    PROGRAMS,
    LEDGER,
    SPIKES,
    "metrics.jsonl",
    "outcome.json",
)
"""The files that process 0 writes in place, so that a link there would lead it elsewhere."""
log = logging.getLogger("meshwright")


@contextlib.contextmanager
def open_directory(
    location: str, warn: Callable[[str], None], *, shared: bool
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Open a run directory; yield its path and a function that uploads changed files at once. Collective.

    For a URL, each process writes to a temporary directory of its own, which is uploaded in the background;
    see `storage.mirrored`. A local directory is locked by process 0, and the function does nothing. Stores
    have no locks.
    """
    with contextlib.ExitStack() as stack:
        if is_address(location):
            mirror = processes.on_all(lambda: stack.enter_context(mirrored(location, _downloads(), warn)))
            processes.on_lead(mirror.remove_probes)
            directory, upload = mirror.path, mirror.put
        else:
            directory, upload = local_path(location), nothing
            processes.on_all(lambda: _prepare(directory))
            processes.lock_run_directory(directory, stack)
            if shared:
                _check_shared(directory)
        with explaining_full_disk(directory):
            yield directory, upload


def _downloads() -> list[str]:
    """Return the files that this process downloads when a run continues: it adds to them or replaces them."""
    of_process_0 = [
        "metrics.jsonl",
        "outcome.json",
        "experiment.txt",
        "began_from.txt",
        PROGRAMS,
        LEDGER,
        SPIKES,
        WENT_BACK,
    ]
    return [_log_name(), *(of_process_0 if processes.is_lead() else [])]


def _prepare(directory: Path) -> None:
    """Make the run directory and check that it can be written to."""
    not_files = (path for name in (*_FILES, _log_name()) if not _can_be_file(path := directory / name))
    links = (path for name in ("attempts", "logs", "board") if (path := directory / name).is_symlink())
    if (path := next(itertools.chain(not_files, links), None)) is not None:
        raise UsageError(
            f"{path} is a link or not an ordinary file, so the run does not write there.\n"
            "  Move it away, or give another run directory with workdir=PATH."
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # A file without a name, or with a new one, cannot follow a link that is already there.
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"written")
    except OSError as error:
        where = error.filename or directory
        raise UsageError(
            f"the run directory {directory} cannot be written to: {error.strerror} ({where}).\n"
            "  Give another one with workdir=PATH, correct its permissions, or free some space on the disk."
        ) from None


def _can_be_file(path: Path) -> bool:
    """Return whether the run may write a file there. A link is refused: it may lead to anybody's file."""
    return not os.path.lexists(path) or (path.is_file() and not path.is_symlink())


def _check_shared(directory: Path) -> None:
    """Check that all processes see the same run directory. Collective."""
    if jax.process_count() > 1 and not processes.is_shared(directory):
        raise UsageError(
            f"the processes do not share the run directory {directory}, but each writes a part of every "
            "checkpoint into it.\n  Give a directory that all of them see with workdir=PATH, or a store with "
            "workdir=s3://…, or a store for the checkpoints only with save.directory=s3://…"
        )


@contextlib.contextmanager
def compiled_programs(cache: bool | str) -> Iterator[None]:
    """Keep the programs that are compiled in the block."""
    previous = jax.config.jax_compilation_cache_dir  # type: ignore[missing-attribute]
    if cache is False or (cache is True and previous is not None):
        yield
        return
    try:
        directory = user_compile_cache() if cache is True else cache
        compile_cache(directory)
        log.info("compiled programs are kept in %s", directory)
    except UsageError as error:
        if cache is not True:
            raise
        log.warning("%s\n  Programs are compiled again at each start.", error)
    try:
        yield
    finally:
        compile_cache(previous)


@contextlib.contextmanager
def log_file(directory: Path) -> Iterator[None]:
    """Write the log of this process to `logs/process-00000.log`, with the error that ends the run, if any."""
    path = directory / _log_name()
    path.parent.mkdir(exist_ok=True)
    handler: Any = logging.FileHandler(path, encoding="utf-8")
    handler.handleError = nothing  # a full disk ends the run with one message of its own
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", FORMAT))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    except BaseException as error:
        log.exception("the run ended by %s: %s", type(error).__name__, str(error).partition("\n")[0])
        raise
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
        handler.close()


def _log_name() -> str:
    return f"logs/process-{jax.process_index():05d}.log"
