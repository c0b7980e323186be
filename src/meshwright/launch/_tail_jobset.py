"""The output of a JobSet on this screen, as if its processes ran here: numbered, and equal lines once.

`kubectl logs` follows the pods that have begun when it is started, until they end or its connection does. So
it is started again whenever others have begun, as after a restart of the JobSet. Then it writes lines that
were shown already, which are known by their times.
"""

import contextlib
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import IO

from meshwright.errors import EXIT_CTRL_C, EXIT_DONE, EXIT_FAILED, MeshwrightError, listed
from meshwright.launch._job import Job
from meshwright.launch._jobset import CONTAINER, WORKERS, Pods
from meshwright.launch._kubectl import KubectlError, Seen, label, look
from meshwright.launch._output import Output
from meshwright.launch._supervise import say

_POLL_SECONDS = 1.0
_AWAY_SECONDS = 300.0
"""The time for which `kubectl` may fail, as when the network is away."""
_WAITING_SECONDS = 10.0
"""The time after which pods that have not begun are told of."""
_REST_SECONDS = 10.0
"""Time for the last lines of pods that have ended."""
_MOST_PODS = 100_000
"""Without a limit of ours, `kubectl` follows five at most."""
_NO_NEWS = re.compile(r"is waiting to start|[Nn]ot? .*found|[EIW]\d{4} ")
"""Lines of `kubectl logs` about pods that have not begun or are gone, and of its own log."""


def tail_jobset(job: Job, pods: Pods) -> int:
    """Show the output of a JobSet until it has ended, also over its restarts; return 0 if it is complete.

    Ctrl-C ends the showing, not the JobSet.

    Args:
      job: The program and its processes.
      pods: The properties of the pods.

    Returns:
      0 if the JobSet is complete, 1 if it has failed or was deleted, 130 after Ctrl-C.

    Raises:
      MeshwrightError: `kubectl` cannot look at the JobSet for five minutes.
    """
    where = ["-n", pods.namespace] if pods.namespace else []
    to_end = shlex.join(["kubectl", "delete", "jobset", job.name, *where])
    try:
        with Output(job.num_processes) as output, contextlib.closing(_Logs(job, pods, where, output)) as logs:
            seen = _follow(job, where, logs)
            logs.show_rest(seen.begun)
    except KeyboardInterrupt:
        say(f"the JobSet {job.name} goes on; to end it: {to_end}")
        return EXIT_CTRL_C
    if seen.end == "Completed":
        return EXIT_DONE
    say(f"the JobSet {job.name} {seen.why}")
    return EXIT_FAILED


def _follow(job: Job, where: Sequence[str], logs: "_Logs") -> Seen:
    """Show the output until no pod runs and the JobSet has ended."""
    news, give_up = _News(job.num_processes), float("inf")
    while True:
        seen = _patiently(job.name, where)
        news.tell(seen)
        logs.follow(seen.begun)
        if seen.end:  # pods may still write, for as long as they have to save
            give_up = min(give_up, time.monotonic() + job.save_seconds + _REST_SECONDS)
            if not any(seen.begun.values()) or time.monotonic() > give_up:
                return seen
        time.sleep(_POLL_SECONDS)


class _News:
    """Says what becomes of the pods: that all start again, and which have not begun for a while."""

    def __init__(self, num_pods: int):
        self._num_pods, self._restarts = num_pods, 0
        self._told, self._tell_at = "", time.monotonic() + _WAITING_SECONDS

    def tell(self, seen: Seen) -> None:
        if seen.restarts > self._restarts:
            self._restarts = seen.restarts
            say(f"the JobSet starts all pods again; restart {seen.restarts}")
        text, now = _waiting_text(seen, self._num_pods), time.monotonic()
        if text and text != self._told and now > self._tell_at:
            self._told, self._tell_at = text, now + _WAITING_SECONDS
            say(text)


def _waiting_text(seen: Seen, number: int) -> str:
    if seen.end or len(seen.begun) >= number:
        return ""
    reasons: dict[str, list[str]] = {}
    for pod, reason in seen.waiting.items():
        reasons.setdefault(reason, []).append(pod)
    why = "; ".join(f"{reason}: {listed(names, 3)}" for reason, names in reasons.items())
    return f"{len(seen.begun)} of {number} pods have begun. {why}".rstrip()


def _patiently(name: str, where: Sequence[str]) -> Seen:
    """Look at a JobSet until it succeeds."""
    give_up = time.monotonic() + _AWAY_SECONDS
    while True:
        try:
            return look(name, where)
        except KubectlError as error:
            if time.monotonic() >= give_up:
                raise MeshwrightError(
                    f"launch jobset: for {_AWAY_SECONDS:g} s, kubectl cannot look at the JobSet {name}: "
                    f"{error}\n  The JobSet goes on. `kubectl get jobset` says how it ends."
                ) from None
        time.sleep(_POLL_SECONDS)


class _Logs:
    """`kubectl logs`, of which each line is shown once."""

    def __init__(self, job: Job, pods: Pods, where: Sequence[str], output: Output):
        self._name, self._where, self._output = job.name, where, output
        self._pods_per_job = job.num_processes // pods.replicas
        self._line = re.compile(
            rf"\[pod/(?P<pod>{job.name}-{WORKERS}-(?P<job>\d+)-(?P<index>\d+)-\w+)/{CONTAINER}\] "
            r"(?P<time>\S+) ?(?P<text>.*)"
        )
        self._newest: dict[str, tuple[str, int]] = {}  # by pod, the newest time, and how many lines have it
        self._before: dict[str, tuple[str, int]] = {}  # the same when `kubectl logs` began
        self._followed: set[str] = set()
        self._complaints: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def follow(self, begun: Mapping[str, bool]) -> None:
        """Follow pods, given those that have begun, and whether they run."""
        is_cut_off = self._process is not None and self._process.poll() is not None and any(begun.values())
        if is_cut_off or not begun.keys() <= self._followed:
            self.close()
            self._start(begun, "--follow")

    def show_rest(self, begun: Mapping[str, bool]) -> None:
        """Show the last lines of pods that have ended."""
        self._await(_REST_SECONDS)
        self.close()
        if begun:
            self._start(begun)
            self._await(_REST_SECONDS)

    def close(self) -> None:
        """Stop following."""
        if self._process is not None and self._thread is not None:
            self._process.kill()
            self._process.wait()
            self._thread.join()
        self._process = self._thread = None

    def _await(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _start(self, begun: Mapping[str, bool], *more: str) -> None:
        self._followed, self._before = set(begun), dict(self._newest)
        words = [*more, "--container", CONTAINER, "--prefix", "--timestamps", "--ignore-errors", "--tail=-1"]
        if begun.keys() <= self._newest.keys():
            oldest = min((self._newest[pod][0] for pod in begun), key=datetime.fromisoformat)
            words.append(f"--since-time={oldest}")
        words.append(f"--max-log-requests={_MOST_PODS}")
        self._process = subprocess.Popen(
            ["kubectl", "logs", "-l", label(self._name), *words, *self._where],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._thread = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._thread.start()

    def _read(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                self._show(line.decode(errors="replace").rstrip("\r\n"))

    def _show(self, line: str) -> None:
        found = self._line.fullmatch(line)
        if found is None:
            if line not in self._complaints and not _NO_NEWS.search(line):
                self._complaints.add(line)
                say(f"kubectl logs: {line}")
        elif not self._was_shown(found["pod"], found["time"]):
            time, count = self._newest.get(found["pod"], ("", 0))
            self._newest[found["pod"]] = found["time"], 1 + (count if found["time"] == time else 0)
            number = int(found["job"]) * self._pods_per_job + int(found["index"])
            self._output.add(number, found["text"], sys.stdout)

    def _was_shown(self, pod: str, time: str) -> bool:
        """Return whether an earlier `kubectl logs` gave a line. Several lines may have one time."""
        newest, count = self._before.get(pod, ("", 0))
        if time == newest and count:
            self._before[pod] = newest, count - 1
            return True
        return _ordered(time) < _ordered(newest)


def _ordered(time: str) -> tuple[str, str]:
    """Return what orders times of one clock. A second may have up to nine digits after its point, or none."""
    whole, _, parts = time.removesuffix("Z").partition(".")
    return whole, parts
