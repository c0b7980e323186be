"""A process of a JobSet in its pod, and the summary of a start that failed.

The pods of a JobSet end one by one, and Kubernetes deletes those of a start before the next one. So each pod
leaves a small file with its end on the volume that all see, and one of them writes the summary of all:

    /runs/gpt.launch/ends-0/3.json    the end of process 3 in the first start
    /runs/gpt.launch/progress         the newest step that is saved
    /runs/gpt.launch/summaries.txt    the summary of each start that failed; the log of a pod has it, too
"""

import json
import os
import queue
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from meshwright.errors import EXIT_DIVERGED, EXIT_INPUT, EXIT_PEERS, EXIT_USAGE, UsageError
from meshwright.launch._child import Child
from meshwright.launch._local import check_command, read_progress
from meshwright.launch._members import End
from meshwright.launch._output import Output
from meshwright.launch._process import News
from meshwright.launch._summary import causes, code_of, has_failed, summary
from meshwright.storage import local_path

_POLL_SECONDS = 0.2
"""Longest wait of the main thread, which handles signals between waits."""
_OTHERS_SECONDS = 5
"""Time for the other pods to end: a survivor does so within four seconds after a death."""
_DRAIN_SECONDS = 2


def run_pod(command: Sequence[str], name: str, shared: str | Path) -> int:
    """Run a process of a JobSet, and return its exit code; 128 + n if signal n ended it.

    After a failure, the pod with the lowest number of those that are left prints the summary of all. All
    signals are passed on; Kubernetes kills a pod that takes too long.

    Args:
      command: The program and its arguments.
      name: The name of the JobSet.
      shared: A directory that all pods see.

    Raises:
      UsageError: The command cannot be run, this is no pod of a JobSet, or `shared` is the URL of a store.

    Example:
      >>> import sys
      >>> mw.launch.run_pod([sys.executable, "-c", "pass"], "gpt", "/runs")  # doctest: +SKIP
      0
    """
    check_command(command)
    folder = local_path(shared) / f"{name}.launch"
    number, total = _place(os.environ)
    ends = folder / f"ends-{os.environ.get('MESHWRIGHT_START', '0')}"
    _prepare(ends, number)
    end = _run(command, number, total, folder / "progress")
    with suppress(OSError):  # a volume that fails must not hide how the process ended
        _leave(ends, end)
        if has_failed(end):
            _tell(ends, number, total, name)
    return code_of(end) if end.exit_code < 0 else end.exit_code


def _place(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the number of the process of this pod, and the number of all."""
    try:
        total = int(environ["JAX_NUM_PROCESSES"])
        if "JAX_PROCESS_ID" in environ:
            return int(environ["JAX_PROCESS_ID"]), total
        before = int(environ["MESHWRIGHT_JOB_INDEX"]) * int(environ["MESHWRIGHT_PODS_PER_JOB"])
        return before + int(environ["JOB_COMPLETION_INDEX"]), total
    except KeyError as error:
        raise UsageError(
            f"launch pod: the environment variable {error.args[0]} is not set. This command runs in the pods "
            "of a JobSet; `meshwright launch jobset --print` shows a manifest with all that it needs."
        ) from error


def _prepare(ends: Path, number: int) -> None:
    """Remove what an earlier JobSet of the same name left."""
    with suppress(OSError):
        ends.mkdir(parents=True, exist_ok=True)
        (ends / f"{number}.json").unlink(missing_ok=True)
        if number == 0 and ends.name == "ends-0":
            (ends.parent / "progress").unlink(missing_ok=True)


def _run(command: Sequence[str], number: int, total: int, progress: Path) -> End:
    news: News = queue.SimpleQueue()
    children: list[Child] = []
    received: list[int] = []

    def pass_on(signal_number: int, _: object) -> None:
        received.append(signal_number)
        for child in children:
            child.send(signal_number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, pass_on)
    environ = {"PYTHONUNBUFFERED": "1", **os.environ, "MESHWRIGHT_PROGRESS": str(progress)}
    with Output(total) as output:
        child = Child(number, command, environ, news, output.add)
        early = list(received)
        children.append(child)
        for each in early:  # those that came before there was a process
            child.send(each)
        while news.empty():
            time.sleep(_POLL_SECONDS)
        child.kill()  # what it has started
        child.drain(time.monotonic() + _DRAIN_SECONDS)
    return End(number, child.host, child.exit_code, tuple(child.last_lines))


def _leave(ends: Path, end: End) -> None:
    new = ends / f"{end.number}.new"
    new.write_text(json.dumps(asdict(end)))
    new.replace(ends / f"{end.number}.json")


def _tell(ends: Path, number: int, total: int, name: str) -> None:
    """Wait until all pods have ended, or for a while; then print the summary, if this pod is the one to."""
    until = time.monotonic() + _OTHERS_SECONDS
    while len(found := _read(ends)) < total and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    if min(end.number for end in found if has_failed(end)) != number:
        return
    present = {end.number for end in found}
    silent = [End(other, "a pod that is gone", -signal.SIGKILL) for other in range(total)]
    silent = [end for end in silent if end.number not in present]
    if all(end.exit_code == EXIT_PEERS for end in causes(found)):
        found = [*silent, *found]  # the one that is gone without a word
    every = sorted({end.number: end for end in [*silent, *found]}.values(), key=lambda end: end.number)
    text = summary(every, found, read_progress(ends.parent / "progress"), silent="no word of its end")
    again = "the JobSet starts all pods again by its rules"
    if code_of(causes(found)[0]) in (EXIT_USAGE, EXIT_INPUT, EXIT_DIVERGED):
        again = "the JobSet ends, as this would happen again. Correct it"
    text += f"\n  {again}; to go on after its end: kubectl delete jobset {name}, and the same launch"
    with (ends.parent / "summaries.txt").open("a") as file:
        file.write(f"start {ends.name.removeprefix('ends-')}: {text}\n")
    print(f"meshwright launch: {text}", file=sys.stderr, flush=True)


def _read(ends: Path) -> list[End]:
    """Return the ends that pods have left, in their order."""
    paths = sorted(ends.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    known = (json.loads(path.read_text()) for path in paths)
    return [End(**(each | {"last_lines": tuple(each["last_lines"])})) for each in known]
