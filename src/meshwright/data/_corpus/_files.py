"""The files with documents that a path, a pattern, a folder or a URL means, in a fixed order."""

import glob
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from meshwright.base._internal import (
    Directory,
    ObjectPath,
    is_address,
    is_file_name,
    local_path,
    location,
    parse_object,
    read_file,
)
from meshwright.errors import InputError, UsageError

KINDS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "txt",
    ".text": "txt",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tar": "tar",
}
"""Kinds of files by the ending of their names, without that of a compression."""
COMPRESSIONS = {".gz": "gz", ".bz2": "bz2", ".xz": "xz", ".zst": "zst", ".zstd": "zst"}
IN_OBJECT = "given"
"""The kind of documents that an object has instead of a file, see `_indexed_source`."""
# Endings that a folder's other files have, too: such files are read only if they are named.
_OFTEN_SOMETHING_ELSE = {".json"}
_WILD = "*?["


@dataclass(frozen=True)
class File:
    """A file with documents."""

    place: str
    """The path or the URL."""
    nbytes: int
    """The size."""
    version: str
    """The time of the last change, as the disk or the store has it."""
    kind: str
    """The format: `jsonl`, `txt`, `parquet`, `arrow` or `tar`; `given` for an object instead of a file."""
    compression: str = ""
    """The compression: `gz`, `bz2`, `xz`, `zst`; empty for none."""

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.place.rstrip("/").rpartition("/")[2]


def files_of(paths: str | Path | Iterable[str | Path]) -> list[File]:
    """Return the files that paths mean. No file is opened, but for the list of files of a data set on disk.

    Args:
      paths: One or more of these, on this machine or in a store (`s3://bucket/texts`):
        - A file: `.jsonl`, `.txt`, `.parquet`, `.arrow` or `.tar`; with `.gz`, `.bz2`, `.xz` or `.zst` behind
          if it is compressed.
        - A pattern with `*`, `?` and `[…]`; `**` stands for folders at any depth.
        - A folder: all files of these kinds in it and below, in the order of their paths.
        - A folder that `save_to_disk` of the library `datasets` has written.

    Raises:
      InputError: There is no such file, or nothing matches a pattern.
      UsageError: A file is of no known kind, or an argument is no path.

    Example:
      >>> import tempfile, pathlib
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "b.txt").write_text("two"), (folder / "a.txt").write_text("one")
      >>> [file.name for file in mw.data.files_of(folder)]
      ['a.txt', 'b.txt']
    """
    path_list = [paths] if isinstance(paths, str | Path) else list(paths)
    if other := next((path for path in path_list if not isinstance(path, str | Path)), None):
        raise UsageError(
            f"a path of texts is of type {type(other).__name__}. Give paths, or one object with documents "
            "that can be indexed."
        )
    if not path_list:
        raise UsageError("there are no paths of texts: give files, folders or patterns.")
    return [file for path in path_list for file in _files(str(path))]


def _files(path: str) -> list[File]:
    # A file may have such letters in its own name.
    exists = not is_address(path) and local_path(path).exists()
    if any(letter in path for letter in _WILD) and not exists:
        files = [_file(name) for name in _matching(path)]
        if not files:
            raise InputError(f"no file matches {path}.")
        return files
    directory = location(path)
    if not directory.is_dir():
        return [_file(directory)]
    if (listed := _of_datasets(directory)) is not None:
        return listed
    if flat := [
        part for part in (".", "train", "validation") if (directory / part / "encoded_tokens").is_dir()
    ]:
        raise UsageError(
            f"{path} has seqax's flat tokens: {', '.join(flat)}. They have an order of their own; read them "
            "by mw.checkpoints.flat_tokens."
        )
    files = [_file(name) for name in _below(directory) if _kind_of(name.name)[0] and not _is_other(name.name)]
    if not files:
        raise InputError(f"{path} has no files with texts.\n  {_known_endings()}")
    return files


def _matching(pattern: str) -> Iterator[Directory]:
    if not is_address(pattern):
        names = sorted(glob.glob(str(local_path(pattern)), recursive=True))  # noqa: PTH207 - it may be absolute
        yield from (path for path in map(location, names) if path.is_file())
        return
    fixed = pattern[: min(pattern.index(letter) for letter in _WILD if letter in pattern)].rpartition("/")[0]
    root = location(fixed)
    yield from (path for path in root.glob(pattern[len(fixed) + 1 :]) if path.is_file())


def _below(directory: Directory) -> Iterator[Directory]:
    """Yield the files of a folder at any depth, in the order of their names; hidden ones are left out."""
    if isinstance(directory, ObjectPath):
        start = len(directory.key) + bool(directory.key)
        names = [key[start:] for key in directory.below()]
    else:
        below = (Path(top) / file for top, _, files in os.walk(directory) for file in files)
        names = [str(path.relative_to(directory)) for path in below]
    visible = (name for name in names if not any(part.startswith(".") for part in name.split("/")))
    yield from (directory / name for name in sorted(visible))


def _is_other(name: str) -> bool:
    return Path(_kind_of(name)[2]).suffix in _OFTEN_SOMETHING_ELSE


def _kind_of(name: str) -> tuple[str, str, str]:
    """Return (kind, compression, name without the compression); kind or compression is "" if unknown."""
    stem, ending = os.path.splitext(name.lower())  # noqa: PTH122 - of names in stores, too
    compression = COMPRESSIONS.get(ending, "")
    plain = stem if compression else name.lower()
    if ending == ".tgz":
        return "tar", "gz", f"{stem}.tar"
    return KINDS.get(Path(plain).suffix, ""), compression, plain


def _file(path: Directory) -> File:
    kind, compression, _ = _kind_of(path.name)
    if not kind:
        raise UsageError(f"{path} is of no kind of files that is known.\n  {_known_endings()}")
    if compression and kind in ("parquet", "arrow"):
        raise UsageError(f"{path}: a compressed {kind} file cannot be read in parts. Decompress it.")
    if isinstance(path, ObjectPath):
        if (entry := path.look()) is None:
            raise InputError(f"{path} does not exist.")
        return File(str(path), entry.nbytes, f"{entry.modified}", kind, compression)
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    return File(str(path), status.st_size, f"{status.st_mtime_ns}", kind, compression)


def _known_endings() -> str:
    return f"Names end with {', '.join(KINDS)}; compressed, with {', '.join(COMPRESSIONS)} behind."


def _of_datasets(directory: Directory) -> list[File] | None:
    """Return the files of a data set that the library `datasets` saved, or None if it is another folder."""
    if (directory / "dataset_dict.json").is_file():
        splits = sorted(path.parent.name for path in directory.glob("*/state.json"))
        raise UsageError(
            f"{directory} has a data set of several parts: {', '.join(splits) or 'none is there'}.\n"
            f"  Give the folder of one: {directory}/{splits[0] if splits else 'train'}."
        )
    if not (directory / "state.json").is_file():
        return None
    try:
        content = directory / "state.json"
        state = parse_object(content.read_bytes() if isinstance(content, ObjectPath) else read_file(content))
        names = [entry["filename"] for entry in state["_data_files"]]
        if not all(isinstance(name, str) and is_file_name(name) for name in names) or not names:
            raise ValueError(f"the names of its files are {json.dumps(names):.80}")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{directory}/state.json is not that of a data set on disk: {error}.") from None
    if state.get("_indices_data_files"):
        raise InputError(f"{directory} is a selection of a data set. Save it by `flatten_indices()` first.")
    return [_file(directory / name) for name in names]
