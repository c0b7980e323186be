"""A process of a JobSet in its pod, its end as small files that all pods see, and the summary of all.

The pods of a JobSet end one by one, and Kubernetes deletes those of a start before the next one. So each
leaves a file when it begins and one when it ends, on a volume or in a store:

    /runs/gpt.launch/ends-1/3.begun      process 3 has begun in start 1; contains its node and pod
    /runs/gpt.launch/ends-1/3.1.json     it has ended with exit code 1 (-n: signal n); contains its last lines
    /runs/gpt.launch/progress            the newest step that is saved
    /runs/gpt.launch/summary-1.txt       the summary of start 1, if it failed; the log of a pod has it, too

The exit code is in the name, so that pods know from a list of names which of them writes the summary, and
only that one reads the files.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from meshwright.base._internal import Directory, ObjectPath, location, print_line, read_each, write_whole
from meshwright.errors import EXIT_DIVERGED, EXIT_FAILED, EXIT_INPUT, EXIT_USAGE, MeshwrightError, UsageError
from meshwright.launch._local import check_command, scratch
from meshwright.launch._members import End
from meshwright.launch._outcome import causes, code_of, fails_for_another, has_failed, summary
from meshwright.launch._process import Child, News
from meshwright.launch._supervise import say

_ENDS_POLL_SECONDS = 0.5
# Time for the other pods to end: a survivor does so within four seconds after a death.
_OTHERS_SECONDS = 5.0
# Time between two looks at what process 0 has saved.
_PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class EndFiles:
    """The place where the pods of one start leave their ends."""

    directory: Directory
    """The folder of the JobSet, such as `/runs/gpt.launch`."""
    start: str
    """The number of the start, from 0."""

    @property
    def folder(self) -> Directory:
        """The folder of this start."""
        return self.directory / f"ends-{self.start}"

    @property
    def progress(self) -> Directory:
        """The file with the newest step that is saved."""
        return self.directory / "progress"


def leave_begun(ends: EndFiles, number: int, host: str) -> None:
    """Say that a process begins, and remove what an earlier JobSet of the same name left of it."""
    try:
        ends.folder.mkdir(parents=True, exist_ok=True)
        old = list(ends.folder.glob(f"{number}.*"))
        if number == 0 and ends.start == "0":
            old += [*ends.directory.glob("progress"), *ends.directory.glob("summary-*.txt")]
        for path in old:
            path.unlink()
        _put(ends.folder / f"{number}.begun", host.encode())
    except OSError as error:
        raise MeshwrightError(
            f"launch pod: {ends.folder} cannot be written to: {error.strerror}. Pods leave their ends there. "
            "Give another place that all pods can write to: launch jobset --shared PATH_OR_URL."
        ) from error


@contextlib.contextmanager
def copying_progress(local: Path, ends: EndFiles) -> Iterator[None]:
    """While the block runs, copy what process 0 says of its newest checkpoint to where all pods see it."""
    over = threading.Event()

    def copy() -> None:
        copied, is_last = b"", False
        while not is_last:
            is_last = over.wait(_PROGRESS_SECONDS)
            # Training does not depend on it: the summary then has an older step.
            with contextlib.suppress(OSError, MeshwrightError):
                if (newest := local.read_bytes()) != copied:
                    _put(ends.progress, newest)
                    copied = newest

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def leave_end(ends: EndFiles, end: End) -> None:
    """Leave the end of a process for the others."""
    content = {**asdict(end), "at": time.time()}
    _put(ends.folder / f"{end.number}.{end.exit_code}.json", json.dumps(content).encode())


def print_summary(ends: EndFiles, number: int, total: int, name: str) -> None:
    """Wait until all have ended, or for a while; then print the summary, if this process is to print it.

    The process with the lowest number of those that failed prints it. `name` is the name of the JobSet.
    """
    # Pods that are killed with their node leave nothing, so the wait is bounded.
    until = time.monotonic() + _OTHERS_SECONDS
    while len(paths := _files_of(ends, "*.json", total)) < total and time.monotonic() < until:
        time.sleep(_ENDS_POLL_SECONDS)
    named = [path.name.split(".") for path in paths]
    codes = {int(process): int(code) for process, code, _ in named}
    if min(process for process in codes if has_failed(End(process, "", codes[process]))) != number:
        return
    text = _summary(_silent(ends, codes, total), _read(paths), total, _saved(ends), name)
    _put(ends.directory / f"summary-{ends.start}.txt", f"start {ends.start}: {text}\n".encode())
    print_line(f"meshwright launch: {text}", sys.stderr)


def _summary(silent: dict[int, str], ended: list[End], total: int, saved: int | None, name: str) -> str:
    """Return the summary of a start."""
    every = {number: End(number, "a pod that did not begin", EXIT_FAILED) for number in range(total)}
    silent_ends = {
        number: End(number, f"{host}, which is gone without a word", -signal.SIGKILL)
        for number, host in silent.items()
    }
    if all(fails_for_another(end) for end in causes(ended)):
        ended = [*silent_ends.values(), *ended]
    every |= silent_ends | {end.number: end for end in ended}
    text = summary(list(every.values()), ended, saved, silent="no word of its end")
    would_repeat = code_of(ended) in (EXIT_USAGE, EXIT_INPUT, EXIT_DIVERGED)
    if would_repeat:
        follows = "the JobSet ends, as this would happen again. Correct it"
    else:
        follows = "the JobSet starts all pods again by its rules"
    return f"{text}\n  {follows}; to go on after its end: kubectl delete jobset {name}, and the same launch"


def _files_of(ends: EndFiles, pattern: str, total: int) -> list[Directory]:
    """Return the files of these processes. An earlier JobSet of the same name may have had more."""
    return [path for path in ends.folder.glob(pattern) if _number(path) < total]


def _number(path: Directory) -> int:
    return int(path.name.partition(".")[0])


def _silent(ends: EndFiles, ended: Collection[int], total: int) -> dict[int, str]:
    """Return where the processes run that have begun and not ended, by number."""
    begun = _files_of(ends, "*.begun", total)
    silent = {_number(path): path for path in begun if _number(path) not in ended}
    hosts = read_each(list(silent.values()))
    return {number: host.decode() for number, host in zip(silent, hosts, strict=True)}


def _read(paths: list[Directory]) -> list[End]:
    """Return the ends in their order, by the clocks of the pods."""
    entries = sorted((json.loads(content) for content in read_each(paths)), key=lambda entry: entry.pop("at"))
    return [End(**(entry | {"last_lines": tuple(entry["last_lines"])})) for entry in entries]


def _saved(ends: EndFiles) -> int | None:
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


# Longest wait of the main thread, which handles signals between waits.
_POLL_SECONDS = 0.2
_DRAIN_SECONDS = 2


def run_pod(command: Sequence[str], name: str, shared: str | Path) -> int:
    """Run a process of a JobSet, and return its exit code; 128 + n if signal n ended it.

    Its output is passed on as it is. After a failure, the process with the lowest number of those that failed
    prints the summary of all. All signals are passed on; Kubernetes kills a pod that takes too long.

    Example:
      >>> import sys
      >>> mw.launch._internal.run_pod([sys.executable, "-c", "pass"], "gpt", "/runs")  # doctest: +SKIP
      0
    """
    check_command(command)
    root, start = location(shared), os.environ.get("MESHWRIGHT_START", "0")
    number, total = _process_numbers(os.environ)
    leave_begun(EndFiles(root / f"{name}.launch", start), number, _host(os.environ))
    # A store that fails must not keep a pod whose time is up.
    ends = EndFiles((root.impatient() if isinstance(root, ObjectPath) else root) / f"{name}.launch", start)
    with scratch() as directory:
        progress = Path(directory, "progress")
        with copying_progress(progress, ends) if number == 0 else contextlib.nullcontext():
            end = _run(command, number, progress)
    try:
        leave_end(ends, end)
        if has_failed(end):
            print_summary(ends, number, total, name)
    except (OSError, MeshwrightError) as error:
        # A failure here must not hide the exit code of the process.
        say(f"process {number} ended, but the other pods cannot be told: {error}")
    return end.exit_code if end.exit_code >= 0 else 128 - end.exit_code


def _host(environ: Mapping[str, str]) -> str:
    """Return where this process runs: its node, if the manifest tells it, and its pod."""
    pod = socket.gethostname()
    node = environ.get("MESHWRIGHT_NODE")
    return f"{node} (pod {pod})" if node else pod


def _process_numbers(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the number of the process of this pod, and the number of all."""
    try:
        total = int(environ["JAX_NUM_PROCESSES"])
        if "JAX_PROCESS_ID" in environ:
            return int(environ["JAX_PROCESS_ID"]), total
        first = int(environ["MESHWRIGHT_JOB_INDEX"]) * int(environ["MESHWRIGHT_PODS_PER_JOB"])
        return first + int(environ["JOB_COMPLETION_INDEX"]), total
    except KeyError as error:
        raise UsageError(
            f"launch pod: the environment variable {error.args[0]} is not set. This command runs in the pods "
            "of a JobSet; `meshwright launch jobset --print` shows a manifest with all that it needs."
        ) from error


def _run(command: Sequence[str], number: int, progress: Path) -> End:
    news: News = queue.SimpleQueue()
    children: list[Child] = []
    received: list[int] = []

    def pass_on(signal_number: int, _: object) -> None:
        received.append(signal_number)
        for child in children:
            child.send(signal_number)

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, pass_on)
    environ = {"PYTHONUNBUFFERED": "1", **os.environ, "MESHWRIGHT_PROGRESS": str(progress)}
    child = Child(number, command, environ, news, _pass_on)
    early = list(received)
    children.append(child)
    # These signals came before there was a process.
    for early_signal in early:
        child.send(early_signal)
    while news.empty():
        time.sleep(_POLL_SECONDS)
    # The process may have started others, which end with it.
    child.kill()
    child.drain(time.monotonic() + _DRAIN_SECONDS)
    return End(number, _host(os.environ), child.exit_code, tuple(child.last_lines))


def _pass_on(_: int, line: str, out: TextIO) -> None:
    # Keep reading even if our own output is closed: a full pipe would block the process.
    with contextlib.suppress(OSError, ValueError):
        print_line(line, out)
