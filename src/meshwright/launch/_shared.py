"""The place where the processes of a start leave their ends, if no launcher sees them all."""

from collections.abc import Sequence
from pathlib import Path

from meshwright.errors import UsageError
from meshwright.launch._job import Job
from meshwright.storage import check_address, is_address

NOTHING = "none"
"""The word of `--shared` for programs that save nothing."""


def pod_command(job: Job, engine: str, shared: str) -> list[str]:
    """Return the command of a process that leaves its end at a place which all see."""
    options = ["--of", engine, "--name", job.name, "--shared", shared]
    return ["meshwright", "launch", "pod", *options, "--", *job.command]


def shared_place(engine: str, mount: str, paths: Sequence[str], shared: str) -> str | None:
    """Return the place that all processes see, or None for a program that saves nothing."""
    if shared == NOTHING:
        return None
    if is_address(shared):
        check_address(shared)
        return shared
    if not shared and not paths:
        raise UsageError(
            f"launch {engine}: neither --mount nor --shared is given. The disk of a pod or machine ends with "
            "it: the next start would see no checkpoint, and no process how the others ended. Give what all "
            f"see, --mount {mount}; or, if workdir is in a store, --shared and a folder there, such as "
            "gs://bucket/runs. For a program that saves nothing, such as `meshwright doctor`: "
            f"--shared {NOTHING}."
        )
    if shared and not any(Path(shared).is_relative_to(path) for path in paths or ["/"]):
        raise UsageError(
            f"launch {engine}: --shared is {shared!r}; expected a directory below a --mount "
            f"({', '.join(paths) or 'such as /runs'}), the URL of a store, or {NOTHING}."
        )
    return shared or paths[0]
