"""Checkpoints in an object store: the same files, made without renames and without locks.

    s3://bucket/run/
      step_00000800/
        manifest.json                                   the commit record, created if there is none
        5e0c1a97/data-00000-of-00002.zarr.zip           the files of the attempt that it names
        91d2b7f0/data-00000-of-00002.zarr.zip           of another attempt: under way, beaten or killed
        manifest.json.damaged-0b8e55d2                  was the manifest, and what it names is damaged
      manifest.json.later-91d2b7f0                    was it before the run went back to an earlier step

Every attempt writes below a name of its own; the manifest is the only object that two could write.
"""

import re
import secrets

from meshwright.checkpoint._format import MANIFEST, read_manifest
from meshwright.errors import MeshwrightError, UsageError
from meshwright.storage import ObjectPath

_ATTEMPT = re.compile(r"[0-9a-f]{8}")


def new_attempt(step: ObjectPath) -> ObjectPath:
    """Return a fresh name for an attempt at a step."""
    return step / secrets.token_hex(4)


def probe(directory: ObjectPath) -> None:
    """Create, look for, read and delete an object, without much patience.

    A typing error in the name of a bucket must be an error, and not look like a directory without
    checkpoints, from which training would begin anew. A store that creates an object twice would let two runs
    save one step.

    Raises:
      UsageError: Something of this cannot be done.
    """
    path = directory.impatient() / f".probe-{secrets.token_hex(4)}"
    try:
        is_refused = path.create(b"written") and not path.create(b"written again")
        is_there = path.is_file()
        path.unlink()
    except MeshwrightError as error:
        raise UsageError(
            f"{directory} cannot be used: {error}\n  Mend the address, the endpoint (AWS_ENDPOINT_URL) or "
            "the credentials; they must allow to write, read, list and delete."
        ) from None
    if not (is_refused and is_there):
        raise UsageError(
            f"{directory} cannot be used: this store does not refuse to create an object that is there "
            "(`If-None-Match`), so two runs could save one step.\n  Use another, or a newer version of it."
        )


def is_attempt(path: ObjectPath) -> bool:
    """Return whether what lies at `path`, in a step, is an attempt at it."""
    return _ATTEMPT.fullmatch(path.name) is not None


def set_aside(step: ObjectPath, name: str) -> ObjectPath:
    """Make a checkpoint none, but keep all of it; return what its manifest is called now: it ends in `name`.

    The manifest alone is written anew. From then on nothing of the step is removed but what later
    attempts at it wrote, as a manifest that is damaged may not say which attempt it is of.
    """
    aside = step / f"{MANIFEST}.{name}"
    try:
        aside.put((step / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise MeshwrightError(f"another run has just removed {step}, or set it aside.") from None
    (step / MANIFEST).unlink()
    return aside


def remove_step(step: ObjectPath, *, unless: ObjectPath) -> None:
    """Remove a checkpoint, unless there is a certain object: the manifest first, without which it is none."""
    doomed = [step / attempt for attempt in _used(step)] if _has_aside(step) else [step]
    manifest = step / MANIFEST
    content = manifest.read_bytes()
    manifest.unlink()
    if unless.is_file():  # in the meantime
        manifest.put(content)
        return
    for path in doomed:
        path.remove_tree()


def remove_leftovers(step: ObjectPath) -> None:
    """Remove the attempts at a step that its manifest does not name: beaten, or killed.

    As nothing is locked, one may also be another run's and under way. So this is for steps that a later
    one has overtaken, and a commit looks whether its files are still there.
    """
    if _has_aside(step):
        return
    used = _used(step)
    for path in list(step.iterdir()):
        if is_attempt(path) and path.name not in used:
            path.remove_tree()


def discard(attempt: ObjectPath) -> None:
    """Remove what a failed save wrote, if the manifest does not name it after all: its answer may be lost."""
    if attempt.name not in _used(attempt.parent):
        attempt.remove_tree()


def _has_aside(step: ObjectPath) -> bool:
    """Return whether there is something at this step that was set aside."""
    return any(step.glob(f"{MANIFEST}.*-*"))


def _used(step: ObjectPath) -> set[str]:
    """Return the attempt that became the checkpoint, if one did."""
    if not (step / MANIFEST).is_file():
        return set()
    return {file.name.partition("/")[0] for file in read_manifest(step).files}
