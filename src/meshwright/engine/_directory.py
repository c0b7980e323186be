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
compile_cache/            compiled programs, for when the run is continued
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
from meshwright.documents import parse_object
from meshwright.engine._errors import explaining_full_disk
from meshwright.errors import InputError, MeshwrightError, UsageError
from meshwright.report import WENT_BACK
from meshwright.storage import is_address, join, local_path, mirrored, read_text
from meshwright.times import FORMAT
from meshwright.train import compile_cache, nothing

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
        with explaining_full_disk(directory):
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
def compiled_programs(place: str | None) -> Iterator[None]:
    """Keep what is compiled in a run directory, where JAX does not keep it elsewhere already; None: nowhere.

    Of a run at an address they stay on this machine: nobody who may write there runs programs here by it.
    """
    kept = jax.config.jax_compilation_cache_dir is not None  # type: ignore[missing-attribute]
    if kept or place is None:
        yield
        return
    cache = (_user_cache() if is_address(place) else local_path(place)) / "compile_cache"
    log.info("compiled programs are kept in %s", cache)
    compile_cache(cache)
    try:
        yield
    finally:
        compile_cache(None)


def checkpoints_of(path: str) -> str:
    """Return where the checkpoints of the run at `path` are; `path` itself, where there is no run to be read.

    Raises:
      InputError: a file of the run that says so is damaged.
    """
    try:
        if _read(join(path, "experiment.txt")) is None:
            return path
    except InputError:  # it is there, and what it says is not needed
        pass
    except MeshwrightError:  # the store does not answer, as whoever opens the checkpoints will say
        return path
    file = join(path, "environment.json")
    try:
        elsewhere = parse_object(_read(file) or "{}").get("checkpoints")
        if not isinstance(elsewhere, str | None) or "\0" in (elsewhere or ""):
            raise ValueError("it names no place")
    except (ValueError, InputError) as error:
        raise InputError(f"{file}, which says where the checkpoints are, is damaged: {error}.") from None
    return elsewhere or join(path, "checkpoints")


def _read(place: str) -> str | None:
    """Return what is in a file, or None where there is none."""
    try:
        return read_text(place)
    except OSError:
        return None


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


def _user_cache() -> Path:
    """Return where programs keep what they can make again (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshwright"
