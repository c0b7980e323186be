"""What can go wrong, as one tree, and the exit code that each kind ends a command with.

    MeshwrightError            1    failed while running
    ├── UsageError             2    a setting is wrong; nothing was started
    │   ├── OverrideError           a name or value on the command line
    │   └── LayoutError             a mesh, rule or batch that does not fit
    ├── InputError             3    data or a checkpoint is missing, unfit or damaged: do not retry
    │   ├── ExamplesError           examples that do not make a batch
    │   └── CheckpointError         not there, or of another shape than wanted
    │       └── DamagedError            a file is missing, or holds other bytes than were written
    ├── DivergedError          4    the loss, or what would be saved, is not finite
    ├── PeersError             6    other processes of this run did not come, or are gone: run it again
    └── Interrupted        75, 130  stopped from outside with the state saved: run the same command again

Every message says what was found, what was expected and what to try. The command line prints
the message alone, without a traceback, and exits with `exit_code`.
"""

import difflib
from collections.abc import Iterable
from unicodedata import category

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INPUT, EXIT_DIVERGED = 0, 1, 2, 3, 4
"""Done, failed, nothing was started, an input is missing or damaged, the loss diverged."""
EXIT_HUNG = 5
"""No step finished any more: the watchdog ended the process from inside."""
EXIT_PEERS = 6
"""Another process of the run is gone; nothing is wrong with this one."""
EXIT_AGAIN = 75
"""Stopped, with the state saved: EX_TEMPFAIL of sysexits.h, which schedulers take as "run me again"."""
EXIT_CTRL_C = 130
"""Ctrl-C: 128 + SIGINT."""

_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""The Unicode categories of what controls a terminal or the order of the text, or cannot be encoded."""


class MeshwrightError(Exception):
    """Anything that Meshwright raises on purpose. Its text holds nothing that a terminal obeys."""

    exit_code = EXIT_FAILED

    def __str__(self) -> str:
        """Return the message; what it cites of a file may be anybody's."""
        return printable(super().__str__())


class UsageError(MeshwrightError, ValueError):
    """A setting is wrong. Raised before any work starts."""

    exit_code = EXIT_USAGE


class OverrideError(UsageError):
    """A name or a value given on the command line fits nothing."""


class LayoutError(UsageError):
    """A mesh, a sharding rule or a batch size does not fit the devices or the arrays."""


class InputError(MeshwrightError):
    """Data or a checkpoint is missing, unfit or damaged; trying again will not help."""

    exit_code = EXIT_INPUT


class ExamplesError(InputError, ValueError):
    """Examples that cannot be made into a batch."""


class CheckpointError(InputError):
    """A checkpoint that is not there, does not match what is wanted, or is damaged."""


class DamagedError(CheckpointError):
    """A file of a checkpoint is missing or truncated, or holds other bytes than were written.

    Only for this does a resumed run fall back to an older checkpoint: what does not *match* is the
    user's to decide.
    """


class DivergedError(MeshwrightError):
    """The loss, or a state that was to be saved, is not finite; or no update is made any more."""

    exit_code = EXIT_DIVERGED


class PeersError(MeshwrightError):
    """Other processes of this run did not arrive, or were lost. Schedulers may run the same command again."""

    exit_code = EXIT_PEERS


class Interrupted(MeshwrightError):  # noqa: N818 - it is not an error: the state is saved
    """The run was told to stop, finished its step and saved. Run the same command again."""

    exit_code = EXIT_AGAIN

    def __init__(self, message: str, *, exit_code: int = EXIT_AGAIN):
        super().__init__(message)
        self.exit_code = exit_code


def printable(text: str, keep: str = "\n\t") -> str:
    r"""Return `text` with what a terminal obeys and does not show, such as escape sequences, as `\x1b`.

    Args:
      text: may be from a stranger's file, as the name of an array is.
      keep: is left as it is. Give "" for a name, which is shown on one line.
    """
    if text.isprintable():
        return text
    return "".join(each if each in keep else _shown(each) for each in text)


def _shown(character: str) -> str:
    return character.encode("unicode_escape").decode() if category(character) in _UNSEEN else character


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return names as one text, the first few of many."""
    names = list(names)
    return ", ".join(names[:most]) + (", …" if names[most:] else "")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that `name` was probably meant to be, or None."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return close[0] if close else None
