"""A lock on a directory, which one process has until it unlocks the directory or ends.

runs/digits/
  .run.lock           locked by its owner (`flock`), if the file system has locks; the file stays
  .run.lock.holder    names the owner, and exists as long as the directory is locked

The system releases a lock when the owner ends. Some file systems have no locks (Lustre mounted without
`flock`, NFS with `nolock`). There the second file is the lock, since only one process can create it. If its
owner is dead, the next process on the same machine removes it. Nobody can know whether a process of another
machine is alive, so its file stays until a person removes it: two runs that write one directory are worse.

On some file systems a lock is only valid on one machine (GPFS, if it is set up so). A process that gets the
lock and finds the name of a process of another machine logs a warning: that process was killed, or it is
still running.
"""

import errno
import fcntl
import json
import logging
import os
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from meshwright.base._internal import open_ordinary
from meshwright.errors import UsageError
from meshwright.processes._proc import is_alive, read_owner, this_machine, this_process
from meshwright.processes._progress import is_launched

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}

WAIT_SECONDS = 10.0
"""The time for which a process of a launcher waits for a lock. A launcher starts processes again after it has
killed the earlier ones, and the system may take a while to end one that waits for a disk or a device."""
_POLL_SECONDS = 0.2

log = logging.getLogger("meshwright")


class DirectoryLock:
    """The lock on a directory that `lock_directory` returns. Forked processes do not have it."""

    def __init__(self, file: Path, lock: BinaryIO, owner: str):
        self._file, self._lock, self._owner = file, lock, owner
        from meshwright.processes._member import close_in_forks  # loads JAX; `is_locked` does not

        close_in_forks(self)

    def close(self) -> None:
        """Unlock the directory."""
        if not self._lock.closed:
            with suppress(OSError):  # the directory may be gone
                if _read(_owner_file(self._file)) == self._owner:
                    _owner_file(self._file).unlink()
            self._lock.close()

    def remove(self) -> None:
        """Unlock the directory, and remove it if it contains no other files."""
        with suppress(OSError):
            _owner_file(self._file).unlink(missing_ok=True)
            # Removed while it is locked: a process that opened it meanwhile sees that it is gone.
            self._file.unlink()
            self._file.parent.rmdir()
        self._lock.close()

    def close_in_fork(self) -> None:
        """Close the file in a forked process; its parent keeps the lock."""
        self._lock.close()


def lock_directory(file: Path) -> DirectoryLock:
    """Lock a directory, which is created if it does not exist.

    A process of a launcher waits up to ten seconds for the lock, since a process of an earlier start may be
    ending.
    """
    try:
        return _lock_now(file)
    except UsageError:
        if not is_launched():
            raise
    owner = read_owner(_read(_owner_file(file)) or "") or "another process"
    waiting = "%s is in use by %s, perhaps of an earlier start that is ending: waiting up to %g s for it"
    log.warning(waiting, file.parent, owner, WAIT_SECONDS)
    give_up = time.monotonic() + WAIT_SECONDS
    while True:
        time.sleep(_POLL_SECONDS)
        try:
            return _lock_now(file)
        except UsageError:
            if time.monotonic() >= give_up:
                raise


def _lock_now(file: Path) -> DirectoryLock:
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as on_failure:
            lock = on_failure.enter_context(_opened(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
            try:
                has_lock = _flock(lock, fcntl.LOCK_EX)
            except BlockingIOError:
                raise _in_use(file, _read(_owner_file(file)) or "") from None
            if not has_lock:
                name = _owner_file(file).name
                log.info(
                    "%s is locked by the file %s, because its file system has no locks", file.parent, name
                )
            # The owner removed the file after it was opened here.
            if not os.fstat(lock.fileno()).st_nlink:
                continue
            with suppress(FileNotFoundError):  # the directory was removed
                owner = _write_owner(file, has_lock)
                on_failure.pop_all()
                return DirectoryLock(file, lock, owner)


def lock_run_directory(directory: Path, stack: ExitStack) -> None:
    """Lock a run directory until a stack is closed. Process 0 locks it for all processes. Collective.

    The directory of the checkpoints, which may be elsewhere, has a lock of its own.
    """
    from meshwright.processes._agree import on_lead  # loads JAX; `is_locked` does not

    def lock() -> None:
        stack.callback(lock_directory(directory / ".run.lock").close)

    on_lead(lock)


def is_locked(file: Path) -> bool:
    """Return whether a process has the lock on a directory; False if there is no lock file.

    This shares the lock for a moment. The owner file is not enough: it may name a dead process.
    """
    try:
        with _opened(file, os.O_RDONLY) as lock:
            has_lock = _flock(lock, fcntl.LOCK_SH)
        owner = _read(_owner_file(file))
    except BlockingIOError:
        return True
    except OSError:
        return False
    return owner is not None and not _is_dead(owner, has_lock)


def _opened(file: Path, flags: int) -> BinaryIO:
    return os.fdopen(open_ordinary(file, flags), "wb" if flags & os.O_WRONLY else "rb")


def _flock(lock: BinaryIO, kind: int) -> bool:
    """Lock an open file, and return whether the file system has locks."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _write_owner(file: Path, has_lock: bool) -> str:
    """Create the file that names this process as the owner, and return its text.

    The file of a dead owner is removed first.
    """
    path, own_record = _owner_file(file), json.dumps(asdict(this_process(has_lock)))
    while True:
        try:
            # On a full disk the file stays empty.
            with path.open("xb") as new, suppress(OSError):
                os.write(new.fileno(), own_record.encode())
            return _read(path) or ""
        except FileExistsError:
            other = _read(path)
        if other is None:
            continue
        if not _is_dead(other, has_lock):
            raise _in_use(file, other, has_lock=has_lock)
        _remove_dead(file, other, has_lock)


def _remove_dead(file: Path, text: str, has_lock: bool) -> None:
    """Remove the owner file of a dead process, but not one that a quicker process has created meanwhile.

    Several processes may find the dead owner. Only the one that creates a file with the owner's token in its
    name may remove the owner file, after it has read it again. A process that has the lock of the file system
    takes such a file over: the one that created it was killed before it removed it.
    """
    owner, path = read_owner(text), _owner_file(file)
    permit = path.with_name(f"{path.name}.{owner.token if owner else 'unnamed'}")
    try:
        permit.touch(exist_ok=has_lock)
    except FileExistsError:
        raise _in_use(file, text, has_lock=False) from None
    try:
        if _read(path) == text:
            path.unlink()
            if owner is not None and owner.machine != this_machine():
                log.warning(
                    "%s was locked by %s, which did not unlock it. Either that process was killed, or it is "
                    "still running, and the locks of this file system work on one machine only: then stop "
                    "one of the two.",
                    file.parent,
                    owner,
                )
    finally:
        permit.unlink(missing_ok=True)


def _is_dead(text: str, has_lock: bool) -> bool:
    """Return whether an owner file belongs to a process that has ended."""
    owner = read_owner(text)
    # The disk was full, or the process was killed before it wrote the file.
    if owner is None:
        return has_lock
    if owner.locked and has_lock:
        return True
    return owner.machine == this_machine() and not is_alive(owner)


def _owner_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.holder")


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return None


def _in_use(file: Path, text: str, *, has_lock: bool = True) -> UsageError:
    owner, path = read_owner(text), _owner_file(file)
    message = (
        f"{file.parent} is already in use by {owner or 'another process'}: only one run at a time may write "
        "there. Wait for it, stop it, or give this run another directory."
    )
    if not has_lock or (owner and not owner.locked):
        message += (
            f"\n  If that process has ended, delete {path}. This file locks the directory, because its file "
            "system has no locks (Lustre: mount it with -o flock; NFS: without nolock)."
        )
    return UsageError(message)
