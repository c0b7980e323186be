"""The end of a save, on process 0: waits for the parts of all processes, checks them, and commits.

All files are written into a temporary directory that only this attempt uses. Renaming it to the final name is
the commit: before it there is no checkpoint, after it there is a complete one. Renaming onto a directory that
is not empty fails, so only one of two writers succeeds. In an object store the commit is the creation of the
manifest, as the last object; it fails if the manifest exists, so again only one of two writers succeeds.
"""

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from meshwright.checkpoint._format._layout import ArrayLayout
from meshwright.checkpoint._format._manifest import (
    MANIFEST,
    ChunkPlace,
    DataFile,
    Manifest,
    SavedArray,
    manifest_text,
)
from meshwright.checkpoint._format._write import data_file_name, part_file_name
from meshwright.collector import collector_paused
from meshwright.durable import fsync_directory, write_whole
from meshwright.errors import MeshwrightError, PeersError, listed
from meshwright.storage import Directory, ObjectPath, parts_of, read_each

_POLL_SECONDS, _POLL_STORE_SECONDS = 0.02, 0.5
_PARTS_TIMEOUT_SECONDS = 1800  # after process 0 has written its own part; all are about equally large


def commit(
    temporary: Directory,
    final: Directory,
    head: Manifest,
    layouts: Sequence[ArrayLayout],
    num_processes: int,
    abandoned: Event,
) -> None:
    """Make the checkpoint `final` from the files that all processes write into `temporary`.

    `head` is the manifest without files and arrays. Setting `abandoned` ends the wait for parts.

    Raises:
      MeshwrightError: A process failed, or the parts do not fit together, or, in a store, another attempt was
        first or files are gone. Nothing was committed.
      OSError: In a file system, another attempt was first.
      PeersError: Some processes did not report in time.
    """
    parts = _await_parts(temporary, num_processes, abandoned)
    names = [data_file_name(process, num_processes) for process in range(num_processes)]
    if isinstance(temporary, ObjectPath):  # nothing is renamed there
        names = [f"{temporary.name}/{name}" for name in names]
    files = tuple(DataFile(name, part["bytes"]) for name, part in zip(names, parts, strict=True))
    with collector_paused():
        _check_parts(parts, layouts)
        manifest = replace(head, files=files, arrays=_arrays(layouts, parts))
    if isinstance(temporary, Path) and isinstance(final, Path):
        _rename(temporary, final, manifest)
    elif isinstance(temporary, ObjectPath) and isinstance(final, ObjectPath):
        _create(temporary, final, manifest)


def _await_parts(temporary: Directory, num_processes: int, abandoned: Event) -> list[dict[str, Any]]:
    parts: dict[int, dict[str, Any]] = {}
    poll_seconds = _POLL_STORE_SECONDS if isinstance(temporary, ObjectPath) else _POLL_SECONDS
    deadline = time.monotonic() + _PARTS_TIMEOUT_SECONDS
    while missing := [process for process in range(num_processes) if process not in parts]:
        arrived = _read_parts(temporary, missing)
        _raise_failures(arrived)
        parts |= arrived
        if not arrived and abandoned.wait(poll_seconds):
            raise MeshwrightError(f"processes {missing} did not finish their part of the save.")
        if not arrived and time.monotonic() > deadline:
            raise PeersError(f"processes {missing} did not report within {_PARTS_TIMEOUT_SECONDS} seconds.")
    return [parts[process] for process in range(num_processes)]


def _read_parts(temporary: Directory, processes: Iterable[int]) -> dict[int, dict[str, Any]]:
    there = {path.name for path in temporary.iterdir()}  # one listing, not one request for each process
    arrived = [process for process in processes if part_file_name(process) in there]
    contents = read_each([temporary / part_file_name(process) for process in arrived])
    return {process: json.loads(content) for process, content in zip(arrived, contents, strict=True)}


def _raise_failures(parts: dict[int, dict[str, Any]]) -> None:
    failed = [f"process {process}: {part['error']}" for process, part in parts.items() if "error" in part]
    if failed:
        raise MeshwrightError("\n".join(failed))


def _check_parts(parts: Sequence[dict[str, Any]], layouts: Sequence[ArrayLayout]) -> None:
    """Check that each process wrote the chunks that process 0 expects, so that none is missing or double."""
    expected: list[set[tuple[str, int, int]]] = [set() for _ in parts]
    for layout in layouts:
        for number, writer in enumerate(layout.writers):
            expected[writer].add((layout.name, number, layout.chunk_nbytes))
    for process, part in enumerate(parts):
        written = {(name, number, size) for name, number, _, size, _ in part["chunks"]}
        if written != expected[process]:
            names = sorted({name for name, *_ in written ^ expected[process]})
            raise MeshwrightError(
                f"process {process} saved another state than process 0: they differ in "
                f"{listed(names)}. All processes must save the same arrays with the same shardings."
            )


def _arrays(layouts: Sequence[ArrayLayout], parts: Sequence[dict[str, Any]]) -> dict[str, SavedArray]:
    places = {
        (name, number): ChunkPlace(process, offset, size, crc)
        for process, part in enumerate(parts)
        for name, number, offset, size, crc in part["chunks"]
    }
    return {
        layout.name: SavedArray(
            layout.shape,
            layout.dtype.name,
            layout.chunk_shape,
            tuple(places[layout.name, number] for number in range(len(layout.writers))),
        )
        for layout in layouts
    }


def _rename(temporary: Path, final: Path, manifest: Manifest) -> None:
    write_whole(temporary / MANIFEST, manifest_text(manifest))
    for part in temporary.glob("part-*.json"):
        part.unlink()
    fsync_directory(temporary)
    temporary.rename(final)
    fsync_directory(final.parent)


def _create(temporary: ObjectPath, final: ObjectPath, manifest: Manifest) -> None:
    there = set(final.below())
    needed = (part.path for file in manifest.files for part in parts_of(final / file.name, file.nbytes))
    if gone := [path.name for path in needed if path.key not in there]:
        raise MeshwrightError(f"{', '.join(gone)} in {final} were removed while the checkpoint was written.")
    if not (final / MANIFEST).create(manifest_text(manifest)):
        raise MeshwrightError(f"another run saves in {final.parent} and was first to save {final.name}.")
    with suppress(MeshwrightError):  # it is committed; part files that remain are removed together with it
        temporary.remove_tree("part-*.json")
