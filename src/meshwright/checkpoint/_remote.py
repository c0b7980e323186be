"""Checkpoints in an object store: the same files, made without renames and without locks.

    s3://bucket/run/
      step_00000800/
        manifest.json                                   the commit record, created if there is none
        5e0c1a97/data-00000-of-00002.zarr.zip           the files of the attempt that it names
        91d2b7f0/data-00000-of-00002.zarr.zip           of another attempt: under way, beaten or killed

Every attempt writes below a name of its own; the manifest is the only object that two could write.
"""

import contextlib
import json
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

from meshwright.checkpoint._format import (
    MANIFEST,
    ArrayLayout,
    Snapshot,
    data_file_name,
    part_file_name,
    read_manifest,
    write_part,
)
from meshwright.checkpoint._object_path import ObjectPath


def new_attempt(step: ObjectPath) -> ObjectPath:
    """Return a fresh name for an attempt at a step."""
    return step / secrets.token_hex(4)


def upload_part(
    attempt: ObjectPath,
    layouts: Sequence[ArrayLayout],
    chunks: Snapshot,
    process_index: int,
    num_processes: int,
) -> None:
    """Write this process's files locally, in a temporary directory, and from there to the store."""
    data, part = data_file_name(process_index, num_processes), part_file_name(process_index)
    try:
        with tempfile.TemporaryDirectory(prefix="meshwright-") as staging:
            write_part(Path(staging), layouts, chunks, process_index, num_processes)
            (attempt / data).put_file(Path(staging) / data)
            (attempt / part).put((Path(staging) / part).read_bytes())
    except BaseException as error:
        chunks.abandon()
        with contextlib.suppress(Exception):  # the store that failed may not take word of it
            (attempt / part).put(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        raise


def remove_step(step: ObjectPath) -> None:
    """Remove a checkpoint: the manifest first, without which it is none."""
    (step / MANIFEST).unlink()
    step.remove_tree()


def remove_leftovers(step: ObjectPath) -> None:
    """Remove the attempts at a step that its manifest does not name: beaten, or killed.

    As nothing is locked, one may also be another run's and under way. So this is for steps that a later
    one has overtaken, and a commit looks whether its files are still there.
    """
    used = _used(step)
    for attempt in list(step.iterdir()):
        if attempt.name not in used | {MANIFEST}:
            attempt.remove_tree()


def discard(attempt: ObjectPath) -> None:
    """Remove what a failed save wrote, if the manifest does not name it after all: its answer may be lost."""
    if attempt.name not in _used(attempt.parent):
        attempt.remove_tree()


def _used(step: ObjectPath) -> set[str]:
    """Return the attempt that became the checkpoint, if one did."""
    if not (step / MANIFEST).is_file():
        return set()
    return {file.name.partition("/")[0] for file in read_manifest(step).files}
