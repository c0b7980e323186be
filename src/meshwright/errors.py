"""The errors of Meshwright, and the exit code that a command ends with after each.

    MeshwrightError            1    the run failed
    ├── UsageError             2    a setting is wrong; nothing was started
    │   ├── OverrideError           a name or value on the command line is wrong
    │   └── LayoutError             a mesh, rule or batch size does not fit
    │       └── AxisError               a mesh axis does not apply to this program
    ├── InputError             3    data or a checkpoint is missing, unfit or damaged: do not retry
    │   ├── ExamplesError           examples do not make a batch
    │   └── CheckpointError         a checkpoint is missing, or does not match the state
    │       └── DamagedError            a file is missing, or does not have the bytes that were written
    ├── OutOfMemoryError       1    a device has no memory left; the message says what held it
    ├── DivergedError          4    the loss, or the state to save, is not finite
    ├── PeersError             6    other processes of the run did not arrive, or are gone: run it again
    └── Interrupted        75, 130  stopped from outside with the state saved: run the same command again

Every message says what was found, what was expected and what to try. The command line prints the message
alone, without a traceback, and exits with `exit_code`.
"""

import errno
import re
import signal
from collections.abc import Iterable
from unicodedata import category

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INPUT, EXIT_DIVERGED = 0, 1, 2, 3, 4
"""Done, failed, nothing was started, an input is missing or damaged, the loss diverged."""
EXIT_HUNG = 5
"""No step finished for too long: the watchdog ended the process from inside."""
EXIT_PEERS = 6
"""Another process of the run is gone; nothing is wrong with this one."""
EXIT_AGAIN = 75
"""Stopped, with the state saved: EX_TEMPFAIL of sysexits.h, which schedulers take as "run me again"."""
EXIT_CTRL_C = 130
"""Ctrl-C: 128 + SIGINT."""
EXIT_OF_STOPS: dict[int, int] = {signal.SIGINT: EXIT_CTRL_C, signal.SIGTERM: EXIT_AGAIN}
"""The exit codes after the signals that stop a run."""

OF_THE_MACHINE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "a disk is full"),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.EROFS), "a disk fails"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "too many files are open"),
    **dict.fromkeys((errno.ESPIPE, errno.ELOOP, errno.EISDIR), "a file is not an ordinary one"),
}
"""Numbers of system errors that a program does not make itself, with their causes."""
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that control a terminal or the order of text, or cannot be encoded."""


class MeshwrightError(Exception):
    """The base class of all errors that Meshwright raises on purpose.

    Example:
      >>> try:
      ...     mw.make_mesh("data=3", jax.devices()[:1])
      ... except mw.MeshwrightError as error:
      ...     print(type(error).__name__, error.exit_code)
      LayoutError 2
    """

    exit_code = EXIT_FAILED
    """The exit code of a command that ends with this error."""

    def __str__(self) -> str:
        """Return the message, with control characters escaped, as it may quote anybody's file."""
        return printable(super().__str__())


class UsageError(MeshwrightError, ValueError):
    """A setting is wrong. Raised before any work starts."""

    exit_code = EXIT_USAGE


class OverrideError(UsageError):
    """A setting on the command line has an unknown name, or a value of the wrong type."""


class LayoutError(UsageError):
    """A mesh, a sharding rule or a batch size does not fit the devices or the arrays."""


class AxisError(LayoutError):
    """A mesh axis does not apply to a program: it would only repeat work, or does not divide what it splits.

    A longer axis does not apply either. Or the mesh lacks an axis that the program names.

    Attributes:
      axis: The name of the axis.
    """

    def __init__(self, message: str, axis: str):
        super().__init__(message)
        self.axis = axis


class InputError(MeshwrightError):
    """Data or a checkpoint is missing, unfit or damaged. Trying again does not help."""

    exit_code = EXIT_INPUT


class ExamplesError(InputError, ValueError):
    """Examples cannot be made into a batch."""


class CheckpointError(InputError):
    """A checkpoint is missing, does not match the state to restore, or is damaged."""


class DamagedError(CheckpointError):
    """A file of a checkpoint is missing or truncated, or does not have the bytes that were written.

    Only after this error does a resumed run fall back to an older checkpoint. If a checkpoint does not
    *match*, the user must decide.
    """


class OutOfMemoryError(MeshwrightError):
    """A device has no memory left, for compiling or for running a program."""


class DivergedError(MeshwrightError):
    """The loss, or the state to save, is not finite; or all updates are being skipped."""

    exit_code = EXIT_DIVERGED


class PeersError(MeshwrightError):
    """Other processes of this run did not arrive, or are gone. A scheduler may run the same command again."""

    exit_code = EXIT_PEERS


class Interrupted(MeshwrightError):  # noqa: N818 - it is not an error: the state is saved
    """The run was told to stop, finished its step and saved. Run the same command again to continue.

    Args:
      message: The reason, and what was saved.
      exit_code: 75, or 130 after Ctrl-C.
    """

    exit_code = EXIT_AGAIN

    def __init__(self, message: str, *, exit_code: int = EXIT_AGAIN):
        super().__init__(message)
        self.exit_code = exit_code

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows in place of a traceback: nothing is wrong."""
        return [f"{type(self).__name__}: {self}"]


def printable(text: str, keep: str = "\n\t") -> str:
    r"""Return a text with control characters escaped, such as the one that begins escape sequences: `\x1b`.

    Args:
      text: The text, which may come from a stranger's file, as the name of an array does.
      keep: The characters to leave as they are. Give "" for a name, which is shown on one line.

    Example:
      >>> mw.errors.printable("name\x07")
      'name\\x07'
    """
    if text.isprintable():
        return text
    return "".join(each if each in keep else _shown(each) for each in text)


def _shown(character: str) -> str:
    return character.encode("unicode_escape").decode() if category(character) in _UNSEEN else character


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return names as one text, with at most the first few.

    Args:
      names: The names.
      most: The largest number of names to show.

    Example:
      >>> mw.errors.listed(["a", "b", "c"], most=2)
      'a, b, …'
    """
    names = list(names)
    return ", ".join(names[:most]) + (", …" if names[most:] else "")


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in order as one text, those that follow each other as a range.

    Args:
      numbers: The numbers, such as those of processes.

    Example:
      >>> mw.errors.ranges({9, 3, 4, 5})
      '3-5, 9'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that a mistyped one was meant to be, or None: a wrong hint is worse than none.

    A name may have one slip, and two if it has more than seven characters: one too many, too few, another
    one, or two that are swapped. Other digits make another name, and so does a slip in two letters. The last
    part of a name is near to it: `loss` to `test/loss`.

    Args:
      name: The mistyped name.
      names: The names to choose from.

    Example:
      >>> mw.errors.nearest("acuracy", ["loss", "accuracy"])
      'accuracy'
    """
    spellings = [(known, known) for known in names]
    if not re.search("[/.]", name):
        spellings += [(known, re.split("[/.]", known)[-1]) for known, _ in spellings]
    for slips in range(3 if len(name) > 7 else 2):
        for known, spelling in spellings:
            if _is_within(slips, name, spelling) and (not slips or _is_alike(name, spelling)):
                return known
    return None


def _is_within(slips: int, a: str, b: str) -> bool:
    """Return whether two texts are so many slips or fewer from each other."""
    while a and a[:1] == b[:1]:
        a, b = a[1:], b[1:]
    if not slips or a == b:
        return a == b
    rests = [(a[1:], b), (a, b[1:]), (a[1:], b[1:]), *([(a[2:], b[2:])] if a[:2] == b[1::-1] else [])]
    return abs(len(a) - len(b)) <= slips and any(_is_within(slips - 1, *rest) for rest in rests)


def _is_alike(a: str, b: str) -> bool:
    """Return whether texts have the same digits, and besides these more than two characters."""
    digits = re.sub(r"\D", "", a)
    return digits == re.sub(r"\D", "", b) and max(len(a), len(b)) - len(digits) > 2


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the sentence " Did you mean 'accuracy'?" about a mistyped name, or nothing; see `nearest`."""
    close = nearest(name, names)
    return f" Did you mean {close!r}?" if close else ""
