"""The ends of a JobSet's pods, as small files which all see, and the summary that one of them writes.

The pods of a JobSet end one by one, and Kubernetes deletes those of a start before the next one. So each
leaves a file when it begins and one when it ends, on a volume or in a store:

    /runs/gpt.launch/ends-1/3.begun      process 3 has begun in start 1; contains where it runs
    /runs/gpt.launch/ends-1/3.1.json     it has ended with exit code 1 (-n: signal n); contains its last lines
    /runs/gpt.launch/progress            the newest step that is saved
    /runs/gpt.launch/summary-1.txt       the summary of start 1, if it failed; the log of a pod has it, too

The exit code is in the name, so that pods know from a list of names which of them writes the summary, and
only that one reads the files.
"""

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwright.base._internal import Directory, ObjectPath, print_line, read_each, write_whole
from meshwright.errors import EXIT_DIVERGED, EXIT_FAILED, EXIT_INPUT, EXIT_USAGE, MeshwrightError
from meshwright.launch._members import End
from meshwright.launch._summary import causes, code_of, fails_for_another, has_failed, summary

_POLL_SECONDS = 0.5
_OTHERS_SECONDS = 5.0
"""Time for the other pods to end: a survivor does so within four seconds after a death."""
_PROGRESS_SECONDS = 1.0
"""Time between two looks at what process 0 has saved."""


@dataclass(frozen=True)
class Ends:
    """The place where the pods of one start leave their ends."""

    place: Directory
    """The folder of the JobSet, such as `/runs/gpt.launch`."""
    start: str
    """The number of the start, from 0."""

    @property
    def folder(self) -> Directory:
        """The folder of this start."""
        return self.place / f"ends-{self.start}"

    @property
    def progress(self) -> Directory:
        """The file with the newest step that is saved."""
        return self.place / "progress"


def begin(ends: Ends, number: int, host: str) -> None:
    """Say that a process begins, and remove what an earlier JobSet of the same name left of it."""
    try:
        ends.folder.mkdir(parents=True, exist_ok=True)
        old = list(ends.folder.glob(f"{number}.*"))
        if number == 0 and ends.start == "0":
            old += [*ends.place.glob("progress"), *ends.place.glob("summary-*.txt")]
        for path in old:
            path.unlink()
        _put(ends.folder / f"{number}.begun", host.encode())
    except OSError as error:
        raise MeshwrightError(
            f"launch pod: {ends.folder} cannot be written to: {error.strerror}. Pods leave their ends there. "
            "Give another place that all pods can write to: launch jobset --shared PATH_OR_URL."
        ) from error


@contextlib.contextmanager
def telling_progress(local: Path, ends: Ends) -> Iterator[None]:
    """While the block runs, copy what process 0 says of its newest checkpoint to where all pods see it."""
    over = threading.Event()

    def copy() -> None:
        told, is_last = b"", False
        while not is_last:
            is_last = over.wait(_PROGRESS_SECONDS)
            # Training does not depend on it: the summary then has an older step.
            with contextlib.suppress(OSError, MeshwrightError):
                if (newest := local.read_bytes()) != told:
                    _put(ends.progress, newest)
                    told = newest

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def leave(ends: Ends, end: End) -> None:
    """Leave the end of a process for the others."""
    content = {**asdict(end), "at": time.time()}
    _put(ends.folder / f"{end.number}.{end.exit_code}.json", json.dumps(content).encode())


def tell(ends: Ends, number: int, total: int, name: str) -> None:
    """Wait until all have ended, or for a while; then print the summary, if this process is the one to.

    It is the one with the lowest number of those that failed. `name` is that of the JobSet.
    """
    until = time.monotonic() + _OTHERS_SECONDS
    while len(paths := _of_these(ends, "*.json", total)) < total and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    named = [path.name.split(".") for path in paths]
    codes = {int(process): int(code) for process, code, _ in named}
    if min(process for process in codes if has_failed(End(process, "", codes[process]))) != number:
        return
    text = _summary(_silent(ends, codes, total), _read(paths), total, _saved(ends), name)
    _put(ends.place / f"summary-{ends.start}.txt", f"start {ends.start}: {text}\n".encode())
    print_line(f"meshwright launch: {text}", sys.stderr)


def _summary(silent: dict[int, str], ended: list[End], total: int, saved: int | None, name: str) -> str:
    """Return the summary of a start."""
    every = {number: End(number, "a pod that did not begin", EXIT_FAILED) for number in range(total)}
    gone = {
        number: End(number, f"{host}, which is gone without a word", -signal.SIGKILL)
        for number, host in silent.items()
    }
    if all(fails_for_another(end) for end in causes(ended)):
        ended = [*gone.values(), *ended]
    every |= gone | {end.number: end for end in ended}
    text = summary(list(every.values()), ended, saved, silent="no word of its end")
    would_repeat = code_of(ended) in (EXIT_USAGE, EXIT_INPUT, EXIT_DIVERGED)
    if would_repeat:
        follows = "the JobSet ends, as this would happen again. Correct it"
    else:
        follows = "the JobSet starts all pods again by its rules"
    return f"{text}\n  {follows}; to go on after its end: kubectl delete jobset {name}, and the same launch"


def _of_these(ends: Ends, pattern: str, total: int) -> list[Directory]:
    """Return the files of these processes. An earlier JobSet of the same name may have had more."""
    return [path for path in ends.folder.glob(pattern) if _number(path) < total]


def _number(path: Directory) -> int:
    return int(path.name.partition(".")[0])


def _silent(ends: Ends, ended: Collection[int], total: int) -> dict[int, str]:
    """Return where the processes run that have begun and not ended, by number."""
    begun = _of_these(ends, "*.begun", total)
    silent = {_number(path): path for path in begun if _number(path) not in ended}
    hosts = read_each(list(silent.values()))
    return {number: host.decode() for number, host in zip(silent, hosts, strict=True)}


def _read(paths: list[Directory]) -> list[End]:
    """Return the ends in their order, by the clocks of the pods."""
    known = sorted((json.loads(content) for content in read_each(paths)), key=lambda each: each.pop("at"))
    return [End(**(each | {"last_lines": tuple(each["last_lines"])})) for each in known]


def _saved(ends: Ends) -> int | None:
    """Return the newest step that is saved; None if there is none."""
    try:
        return int(ends.progress.read_bytes())
    except (OSError, ValueError):
        return None


def _put(path: Directory, content: bytes) -> None:
    """Write a small file whole: others see all of it or nothing."""
    if isinstance(path, ObjectPath):
        path.put(content)
    else:
        write_whole(path, content)
