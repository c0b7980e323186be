"""The files of a run directory, and the functions that put them there.

experiment.txt            the settings, one a line
attempts/step_….txt       the same for each attempt, by the step that it went on from
attempts/went_back.jsonl  when it went back to an earlier step; see `_back.py`
experiment.json           how it was started, for `meshwright resume`
state.txt                 the parameters, where each lies, and what the state takes
environment.json          versions, devices, mesh, commit, command line, where checkpoints are if elsewhere
metrics.jsonl             the run's truth: one line a report
events.out.tfevents…      the same for TensorBoard
plugins/profile/step_…    profiles, if asked for, where TensorBoard looks for them
checkpoints/step_…        see docs/checkpoint-format.md
outputs/test/step_….jsonl what the model made of each example, of evaluations that ask for it
logs/process-00000.log    what each process has to say
.run.lock                 held by the run, so that no other writes here; see `process.hold`
outcome.json              how it ended, once it has
report.html               all of this as a page, made when it ends
"""

import contextlib
import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from meshwright import process
from meshwright.engine._full_disks import telling_of_full_disks
from meshwright.errors import UsageError
from meshwright.report import WENT_BACK
from meshwright.storage import is_address, local_path, mirrored
from meshwright.times import FORMAT
from meshwright.train import compile_cache, nothing, user_compile_cache

_FILES = (
    "experiment.txt",
    "experiment.json",
    "state.txt",
    "environment.json",
    "metrics.jsonl",
    "outcome.json",
)
"""Files that process 0 writes in place; a new page replaces the old one."""
log = logging.getLogger("meshwright")


@contextlib.contextmanager
def open_directory(
    place: str, warn: Callable[[str], None], *, shared: bool
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Give the run directory and, where it is at an address, what puts there at once what has changed.

    In that case it is a temporary one, each process's own; see `storage.mirrored`. A directory of this
    machine is held meanwhile, by process 0 for all; stores have no locks. Collective.

    Args:
      place: the directory or its address.
      warn: is told what goes wrong on the way to an address.
      shared: whether all processes must see the same directory.

    Raises:
      UsageError: another run has it, it cannot be written to, or is not one for all processes.
      MeshwrightError: at the end, if not all that is in it could be put at the address.
    """
    with contextlib.ExitStack() as opened:
        if is_address(place):
            mirror = process.together(lambda: opened.enter_context(mirrored(place, _continued(), warn)))
            directory, put = mirror.path, mirror.put
        else:
            directory, put = local_path(place), nothing
            process.together(lambda: _prepare(directory))
            process.hold_run(directory, opened)
            if shared:
                _check_shared(directory)
        with telling_of_full_disks(directory):
            yield directory, put


def _continued() -> list[str]:
    """Return the files that this process goes on with, or takes back, where a run is continued."""
    leads = ["metrics.jsonl", "outcome.json", "experiment.txt", WENT_BACK]
    return [_log_name(), *(leads if process.is_lead() else [])]


def _prepare(directory: Path) -> None:
    """Make the run directory and show that it can be written to.

    Raises:
      UsageError: it cannot, or where a file is to be is something else.
    """
    in_the_way = (path for name in (*_FILES, _log_name()) if not _can_be_file(path := directory / name))
    links = (path for name in ("attempts", "logs") if (path := directory / name).is_symlink())
    if (path := next(itertools.chain(in_the_way, links), None)) is not None:
        raise UsageError(
            f"{path} is a link, or no ordinary file, and the run would write there.\n"
            "  Move it away, or give another run directory with workdir=PATH."
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Of no name, or a new one: it follows no link that is there already.
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"written")
    except OSError as error:
        where = error.filename or directory
        raise UsageError(
            f"the run directory {directory} cannot be written to: {error.strerror} ({where}).\n"
            "  Give another with workdir=PATH, or mend its permissions or the disk's space."
        ) from None


def _can_be_file(path: Path) -> bool:
    """Return whether a file may be written there: by a link it would be another, of anybody's."""
    return not os.path.lexists(path) or (path.is_file() and not path.is_symlink())


def _check_shared(directory: Path) -> None:
    """Check that the run directory is one and the same for all processes. Collective.

    Raises:
      UsageError: it is not.
    """
    if jax.process_count() > 1 and not process.is_shared(directory):
        raise UsageError(
            f"the run directory {directory} is not one for all processes, each of which writes a part "
            "of every checkpoint into it.\n  Give one that all see with workdir=PATH, or a store with "
            "workdir=s3://…, or for the checkpoints alone with save.directory=s3://…"
        )


@contextlib.contextmanager
def compiled_programs(cache: bool | str) -> Iterator[None]:
    """Keep what is compiled as `Compile.cache` says, in the user's folder for True."""
    known = jax.config.jax_compilation_cache_dir  # type: ignore[missing-attribute]
    if cache is False or (cache is True and known is not None):
        yield
        return
    directory = user_compile_cache() if cache is True else cache
    log.info("compiled programs are kept in %s", directory)
    compile_cache(directory)
    try:
        yield
    finally:
        compile_cache(known)


@contextlib.contextmanager
def log_file(directory: Path) -> Iterator[None]:
    """Send the log of this process to `logs/process-00000.log`, and with it the error that ends the run."""
    path = directory / _log_name()
    path.parent.mkdir(exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", FORMAT))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    except BaseException:
        log.exception("the run ended with an error")
        raise
    finally:
        log.removeHandler(handler)
        handler.close()


def _log_name() -> str:
    return f"logs/process-{jax.process_index():05d}.log"
