"""The end of a save, on process 0: waits for the parts of all processes, checks them, and commits.

All files are written into a temporary directory that only this attempt uses. Renaming it to the final name is
the commit: before it there is no checkpoint, after it there is a complete one. Renaming onto a directory that
is not empty fails, so only one of two writers succeeds. In an object store the commit is the creation of the
manifest, as the last object; it fails if the manifest exists, so again only one of two writers succeeds.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from meshwright.base._internal import (
    Directory,
    ObjectPath,
    collector_paused,
    fsync_directory,
    parts_of,
    read_each,
    write_whole,
)
from meshwright.checkpoints._format._layout import ArrayLayout
from meshwright.checkpoints._format._manifest import (
    MANIFEST,
    ChunkPlace,
    DataFile,
    Manifest,
    SavedArray,
    manifest_text,
)
from meshwright.checkpoints._format._write import data_file_name, part_file_name
from meshwright.errors import MeshwrightError, PeersError, listed

# A store is polled less often, as each look is a request.
_POLL_SECONDS, _POLL_STORE_SECONDS = 0.02, 0.5
# Counts from when process 0 has written its own part. All parts are about equally large.
_PARTS_TIMEOUT_SECONDS = 1800
ON_OTHER_HOSTS = "on-other-hosts"
"""The file, which does not exist, that a host's manifest names for the chunks that only other hosts have."""


def commit(
    temporary: Directory,
    final: Directory,
    head: Manifest,
    layouts: Sequence[ArrayLayout],
    num_processes: int,
    abandoned: Event,
    local_processes: Sequence[int] | None = None,
) -> None:
    """Make the checkpoint `final` from the files that processes write into `temporary`.

    `head` is the manifest without files and arrays. Setting `abandoned` ends the wait for parts.
    `local_processes` are the processes that write there, if these are not all: the chunks of the others are
    elsewhere.
    """
    parts = _await_parts(
        temporary, range(num_processes) if local_processes is None else local_processes, abandoned
    )
    names = {process: data_file_name(process, num_processes) for process in parts}
    if isinstance(temporary, ObjectPath):  # nothing is renamed there
        names = {process: f"{temporary.name}/{name}" for process, name in names.items()}
    with collector_paused():
        _check_parts(parts, layouts)
        files = [DataFile(names[process], part["bytes"]) for process, part in parts.items()]
        remote_places = _places_elsewhere(layouts, parts, len(files))
        if remote_places:
            files.append(DataFile(ON_OTHER_HOSTS, sum(chunk.size for chunk in remote_places.values())))
        arrays = _arrays(layouts, _places(parts) | remote_places)
        manifest = replace(head, files=tuple(files), arrays=arrays)
    if isinstance(temporary, Path) and isinstance(final, Path):
        _rename(temporary, final, manifest)
    elif isinstance(temporary, ObjectPath) and isinstance(final, ObjectPath):
        _create(temporary, final, manifest)


def _await_parts(
    temporary: Directory, processes: Sequence[int], abandoned: Event
) -> dict[int, dict[str, Any]]:
    parts: dict[int, dict[str, Any]] = {}
    poll_seconds = _POLL_STORE_SECONDS if isinstance(temporary, ObjectPath) else _POLL_SECONDS
    deadline = time.monotonic() + _PARTS_TIMEOUT_SECONDS
    while missing := [process for process in processes if process not in parts]:
        arrived = _read_parts(temporary, missing)
        if failed := [
            f"process {process}: {part['error']}" for process, part in arrived.items() if "error" in part
        ]:
            raise MeshwrightError("\n".join(failed))
        parts |= arrived
        if not arrived and abandoned.wait(poll_seconds):
            raise MeshwrightError(f"processes {missing} did not finish their part of the save.")
        if not arrived and time.monotonic() > deadline:
            raise PeersError(f"processes {missing} did not report within {_PARTS_TIMEOUT_SECONDS} seconds.")
    return {process: parts[process] for process in processes}


def _read_parts(temporary: Directory, processes: Iterable[int]) -> dict[int, dict[str, Any]]:
    # One listing, not one request for each process.
    names = {path.name for path in temporary.iterdir()}
    arrived = [process for process in processes if part_file_name(process) in names]
    contents = read_each([temporary / part_file_name(process) for process in arrived])
    return {process: json.loads(content) for process, content in zip(arrived, contents, strict=True)}


def _check_parts(parts: Mapping[int, dict[str, Any]], layouts: Sequence[ArrayLayout]) -> None:
    """Check that each process wrote the chunks that this one expects, so that none is missing or double."""
    expected: dict[int, set[tuple[str, int, int]]] = {process: set() for process in parts}
    for layout in layouts:
        for number, writer in enumerate(layout.writers):
            if writer in expected:
                expected[writer].add((layout.name, number, layout.chunk_nbytes))
    for process, part in parts.items():
        reported = {(name, number, size) for name, number, _, size, _ in part["chunks"]}
        if reported != expected[process]:
            names = sorted({name for name, *_ in reported ^ expected[process]})
            raise MeshwrightError(
                f"process {process} saved another state than process {min(parts)}: they differ in "
                f"{listed(names)}. All processes must save the same arrays with the same shardings."
            )


def _places(parts: Mapping[int, dict[str, Any]]) -> dict[tuple[str, int], ChunkPlace]:
    return {
        (name, number): ChunkPlace(file, offset, size, crc)
        for file, part in enumerate(parts.values())
        for name, number, offset, size, crc in part["chunks"]
    }


def _places_elsewhere(
    layouts: Sequence[ArrayLayout], parts: Mapping[int, Any], file: int
) -> dict[tuple[str, int], ChunkPlace]:
    """Return places for the chunks that no process here has: one after the other in a file that is not here.

    So the manifest is whole. Whoever reads such a chunk finds that its file is missing.
    """
    places: dict[tuple[str, int], ChunkPlace] = {}
    offset = 0
    for layout in layouts:
        for number, writer in enumerate(layout.writers):
            if writer not in parts:
                places[layout.name, number] = ChunkPlace(file, offset, layout.chunk_nbytes, 0)
                offset += layout.chunk_nbytes
    return places


def _arrays(
    layouts: Sequence[ArrayLayout], places: Mapping[tuple[str, int], ChunkPlace]
) -> dict[str, SavedArray]:
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
    # The part files were for this process alone.
    for part in temporary.glob("part-*.json"):
        part.unlink()
    # This flushes the directory entries of the data files, too.
    write_whole(temporary / MANIFEST, manifest_text(manifest))
    temporary.rename(final)
    fsync_directory(final.parent)


def _create(temporary: ObjectPath, final: ObjectPath, manifest: Manifest) -> None:
    keys = set(final.below())
    # Another run may have removed the attempt as a leftover of a killed one.
    needed = (part.path for file in manifest.files for part in parts_of(final / file.name, file.nbytes))
    if missing := [path.name for path in needed if path.key not in keys]:
        raise MeshwrightError(
            f"{', '.join(missing)} in {final} were removed while the checkpoint was written."
        )
    # Created only if there is none, so that of two runs one succeeds.
    if not (final / MANIFEST).create(manifest_text(manifest)):
        raise MeshwrightError(f"another run saves in {final.parent} and was first to save {final.name}.")
    # The checkpoint is committed. Part files that remain are removed together with it.
    with suppress(MeshwrightError):
        temporary.impatient().remove_tree("part-*.json")
