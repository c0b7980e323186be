"""A directory that one process at a time holds, until it gives it back or dies.

runs/digits/
  .run.lock           locked by the holder (`flock`), where the file system has locks; it stays
  .run.lock.holder    names the holder, and is there as long as it holds

The system gives a lock back when its holder dies. Some file systems have no locks (Lustre mounted without
`flock`, NFS with `nolock`): there the second file is what holds, since only one process can make it. What a
dead process left of it is removed by the next one on its machine. Whether a process of another machine lives
cannot be known, so its file stands until a person removes it: a directory that two runs write is worse.

Locks of some file systems hold on each machine alone (GPFS, as it may be set up). Who gets the lock and finds
the name of a process of another machine says so: that one was killed, or still runs.
"""

import errno
import fcntl
import json
import logging
import os
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from meshwright.durable import open_ordinary
from meshwright.errors import UsageError
from meshwright.process._holder import Holder, is_alive, read_holder, this_machine, this_process
from meshwright.process._member import forget_in_forks
from meshwright.process._together import on_lead

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}

log = logging.getLogger("meshwright")


class Hold:
    """A directory that is held. `hold` takes it; in a forked process it is held no more."""

    def __init__(self, file: Path, lock: BinaryIO, written: str):
        self._file, self._lock, self._written = file, lock, written
        forget_in_forks(self)

    def close(self) -> None:
        """Give it back."""
        if not self._lock.closed:
            with suppress(OSError):  # the directory may be gone
                if _read(_name_of(self._file)) == self._written:
                    _name_of(self._file).unlink()
            self._lock.close()

    def remove(self) -> None:
        """Give it back and remove the directory, unless there is something else in it."""
        with suppress(OSError):
            _name_of(self._file).unlink(missing_ok=True)
            self._file.unlink()  # while it is locked: who opens it now and waits finds that it is gone
            self._file.parent.rmdir()
        self._lock.close()

    def forget(self) -> None:
        """Let go of it in this process, which is a fork of the one that holds it."""
        self._lock.close()


def hold(file: Path) -> Hold:
    """Hold the directory of `file`, which is made where it is not, against all who hold it by this file.

    Raises:
      UsageError: another process holds it, or may.
      OSError: something cannot be made.
    """
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as on_failure:
            lock = on_failure.enter_context(_opened(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
            is_locked = _lock(file, lock)
            if not os.fstat(lock.fileno()).st_nlink:  # its holder removed it after it was opened here
                continue
            with suppress(FileNotFoundError):  # the directory was removed
                written = _write_name(file, is_locked)
                on_failure.pop_all()
                return Hold(file, lock, written)


def hold_run(directory: Path, opened: ExitStack) -> None:
    """Hold the directory of a run until `opened` is closed: process 0 does, for all of them. Collective.

    Its checkpoints, which may be elsewhere, are held by themselves.

    Raises:
      UsageError: on every process, if another run has it.
    """

    def take() -> None:
        opened.callback(hold(directory / ".run.lock").close)

    on_lead(take)


def is_held(file: Path) -> bool:
    """Return whether a process holds the directory of `file`; False where it is not there.

    It is asked by sharing the lock for a moment: a name may be that of a process that is dead.
    """
    try:
        with _opened(file, os.O_RDONLY) as lock:
            is_locked = _shared(lock)
        left = _read(_name_of(file))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return left is not None and not _is_gone(left, is_locked)


def _opened(file: Path, flags: int) -> BinaryIO:
    return os.fdopen(open_ordinary(file, flags), "wb" if flags & os.O_WRONLY else "rb")


def _shared(lock: BinaryIO) -> bool:
    """Share the lock, and return whether the file system has any."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _lock(file: Path, lock: BinaryIO) -> bool:
    """Lock an open file, and return whether the file system can do that.

    Raises:
      UsageError: another process has locked it.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(file, _read(_name_of(file)) or "") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.info("%s is held by %s: its file system has no locks", file.parent, _name_of(file).name)
        return False
    return True


def _write_name(file: Path, is_locked: bool) -> str:
    """Make the file that names this process, in the place of what a dead one left, and return what it says.

    Raises:
      UsageError: that of another process is there.
    """
    name, me = _name_of(file), json.dumps(asdict(this_process(is_locked)))
    while True:
        try:
            with name.open("x") as made, suppress(OSError):  # a full disk holds no word of it
                os.write(made.fileno(), me.encode())
            return _read(name) or ""
        except FileExistsError:
            left = _read(name)
        if left is None:
            continue
        if not _is_gone(left, is_locked):
            raise _in_use(file, left, is_locked=is_locked)
        _remove_left(file, left)


def _remove_left(file: Path, left: str) -> None:
    """Remove the file of a dead holder, and not that of one who was quicker.

    Of all who found the dead one's name only who makes a file called after it may remove it, and looks again
    before that.
    """
    holder, name = read_holder(left), _name_of(file)
    mine = name.with_name(f"{name.name}.{holder.token if holder else 'unnamed'}")
    try:
        mine.touch(exist_ok=False)
    except FileExistsError:
        raise _in_use(file, left, is_locked=False) from None
    try:
        if _read(name) == left:
            name.unlink()
            _tell(file, holder)
    finally:
        mine.unlink()


def _tell(file: Path, left: Holder | None) -> None:
    if left is not None and left.machine != this_machine():
        log.warning(
            "%s was held by %s, which did not give it back. It was killed; or it still runs, and the locks "
            "of this file system hold on one machine only: then stop one of the two.",
            file.parent,
            left,
        )


def _is_gone(left: str, is_locked: bool) -> bool:
    """Return whether nobody holds any more by the name that is there.

    Args:
      left: what the file with the name says.
      is_locked: whether this process has the lock.
    """
    holder = read_holder(left)
    if holder is None:  # a full disk, or it was killed before it wrote
        return is_locked
    if holder.locked and is_locked:
        return True
    return holder.machine == this_machine() and not is_alive(holder)


def _name_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.holder")


def _read(name: Path) -> str | None:
    try:
        return name.read_text(errors="replace")
    except FileNotFoundError:
        return None


def _in_use(file: Path, left: str, *, is_locked: bool = True) -> UsageError:
    holder, name = read_holder(left), _name_of(file)
    who = holder or "another process"
    said = (
        f"{file.parent} is already in use by {who}: one run at a time may write there. Wait for it, stop it, "
        "or give this run a directory of its own."
    )
    if not is_locked or (holder and not holder.locked):
        said += (
            f"\n  If it is gone: delete {name}. That file holds the directory, as its file system has no "
            "locks, which end with their process (Lustre: mount it with -o flock; NFS: without nolock)."
        )
    return UsageError(said)
