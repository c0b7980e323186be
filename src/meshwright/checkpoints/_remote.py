"""Checkpoints in an object store: the same files, without renames and without locks.

    s3://bucket/run/
      step_00000800/
        manifest.json                                   the commit record, created only if it does not exist
        5e0c1a97/data-00000-of-00002.zarr.zip           the files of the attempt that the manifest names
        91d2b7f0/data-00000-of-00002.zarr.zip           those of another: in progress, too late or killed
        manifest.json.damaged-0b8e55d2                  a manifest whose checkpoint is damaged
        manifest.json.later-91d2b7f0                    one set aside when the run went back to a step before

Each attempt writes below a unique name; the manifest is the only object that two attempts may both write.
"""

import re
import secrets

from meshwright.base._internal import ObjectPath
from meshwright.checkpoints._format._manifest import MANIFEST, read_manifest
from meshwright.errors import MeshwrightError, UsageError

_ATTEMPT = re.compile(r"[0-9a-f]{8}")


def new_attempt(step: ObjectPath) -> ObjectPath:
    """Return a new, unique path for an attempt at a step."""
    return step / secrets.token_hex(4)


def probe(directory: ObjectPath) -> None:
    """Check that objects can be created, listed, read and deleted, with few retries.

    A mistyped bucket must be an error, and not look like a directory without checkpoints, in which training
    would start again. A store that creates an object twice would let two runs save the same step.
    """
    # Few retries, so that a mistyped address is an error soon.
    path = directory.impatient() / f".probe-{secrets.token_hex(4)}"
    try:
        is_refused = path.create(b"written") and not path.create(b"written again")
        is_there = path.is_file()
        path.unlink()
    except MeshwrightError as error:
        raise UsageError(
            f"{directory} cannot be used: {error}\n  Correct the URL, the endpoint (AWS_ENDPOINT_URL) or "
            "the credentials; they must allow writing, reading, listing and deleting."
        ) from None
    if not (is_refused and is_there):
        raise UsageError(
            f"{directory} cannot be used: this store does not refuse to create an object that exists "
            "(`If-None-Match`), so two runs could save the same step.\n  Use another store, or a newer "
            "version of it."
        )


def is_attempt(path: ObjectPath) -> bool:
    """Return whether `path`, directly below a step, is an attempt."""
    return _ATTEMPT.fullmatch(path.name) is not None


def set_aside(step: ObjectPath, name: str) -> ObjectPath:
    """Rename a checkpoint's manifest, so that it no longer counts as one; return the new path.

    Only the manifest is written again. A damaged manifest may not name its attempt, so from then on only the
    files of later attempts at this step are removed.
    """
    aside = step / f"{MANIFEST}.{name}"
    try:
        aside.put((step / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise MeshwrightError(f"another run has just removed or renamed {step}.") from None
    (step / MANIFEST).unlink()
    return aside


def remove_step(step: ObjectPath, *, unless: ObjectPath) -> None:
    """Remove a checkpoint, its manifest first, unless the object `unless` exists."""
    # If the step has a manifest that was set aside, the files of other attempts may belong to that one.
    doomed = [step / attempt for attempt in _used(step)] if _has_aside(step) else [step]
    manifest = step / MANIFEST
    content = manifest.read_bytes()
    manifest.unlink()
    # The object was created after the first check.
    if unless.is_file():
        manifest.put(content)
        return
    for path in doomed:
        path.remove_tree()


def remove_leftovers(step: ObjectPath) -> None:
    """Remove the attempts at a step that its manifest does not name.

    As nothing is locked, another run may still be writing one. So this is only for steps before the newest
    complete one, and a commit checks that its files still exist.
    """
    if _has_aside(step):
        return
    used = _used(step)
    for path in list(step.iterdir()):
        if is_attempt(path) and path.name not in used:
            path.remove_tree()


def discard(attempt: ObjectPath) -> None:
    """Remove a failed attempt, unless the manifest names it: it was committed if only the answer was lost."""
    # The commit may have succeeded although the answer of the store was lost.
    if attempt.name not in _used(attempt.parent):
        attempt.remove_tree()


def _has_aside(step: ObjectPath) -> bool:
    """Return whether a checkpoint of this step was set aside."""
    return any(step.glob(f"{MANIFEST}.*-*"))


def _used(step: ObjectPath) -> set[str]:
    """Return the name of the attempt that became the checkpoint; empty if none did."""
    if not (step / MANIFEST).is_file():
        return set()
    return {file.name.partition("/")[0] for file in read_manifest(step).files}
