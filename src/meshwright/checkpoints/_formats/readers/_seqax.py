"""Reads seqax's checkpoints: a step is a zarr v2 group with an array for each leaf.

    0000000008/
      .zgroup, .zattrs             {"write_completed": true}, written last
      ['params']['w'][0]/          named by JAX's `keystr`: a key, an index, or `.name` for an attribute
        .zarray, 0.0, 0.1, …

In seqax's own states the keys are joined by nothing, `weightstransformerw_q`. Such a name cannot be split and
stays as it is. The leaf `weights/transformer/w_q` is found by joining its keys in the same way.

Its training data, flat tokens, are one array `encoded_tokens` in a group for each split, with `seq_starts`.

Source: docs/pytree-zarr-checkpoint.md of github.com/MatX-inc/seqax, and files that it wrote.
"""

import ast
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

import numpy as np

from meshwright.base._internal import Directory, ObjectPath, read_each, tree
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._source import Spelling
from meshwright.checkpoints._formats.readers._reader import (
    Foreign,
    Reader,
    complete_in,
    newest,
    step_of,
    steps_in,
)
from meshwright.checkpoints._formats.readers._tensorstore import open_arrays, store_of
from meshwright.errors import CheckpointError, DamagedError

_GROUP, _ARRAY = ".zgroup", ".zarray"
_CHUNK = re.compile(r"\d+(\.\d+)*")
_KEY = re.compile(
    r"""\[(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]
      | \[(?:<flat\ index\ )?(?P<index>\d+)>?\]
      | \.(?P<name>\w+)""",
    re.VERBOSE,
)


def _recognises(path: Directory) -> bool:
    return _is_step(path) or bool(steps_in(path, _is_step))


def _is_step(path: Directory) -> bool:
    if _is_committed(path):
        return True
    return (path / _GROUP).is_file() and any(path.glob(f"*/{_ARRAY}")) and not is_flat_tokens(path)


def _open(path: Directory) -> Foreign:
    steps = [path] if _is_step(path) else steps_in(path, _is_step)
    directory = newest(steps, _is_committed)
    if not _is_committed(directory):
        raise CheckpointError(
            f"{directory} is not complete: its .zattrs has no write_completed. Its save is still "
            "running, or was killed. Open another step."
        )
    if not (directory / _GROUP).is_file():
        raise DamagedError(f"{directory} has no {_GROUP}. Copy it again, with its hidden files.")
    stored = _by_our_names(directory)
    may_lack = _may_lack_chunks(directory, list(stored.values()))
    specs = {
        name: {"driver": "zarr", "path": stored_path, "fill_missing_data_reads": may}
        for (name, stored_path), may in zip(stored.items(), may_lack, strict=True)
    }
    arrays = open_arrays(directory, store_of(directory), specs)
    return Foreign(
        directory,
        READER.name,
        arrays,
        step_of(directory.name),
        spelling=Spelling(folded=_joined),
    )


def _steps(directory: Directory) -> dict[int, Directory]:
    return complete_in(steps_in(directory, _is_step), _is_committed)


def _is_committed(directory: Directory) -> bool:
    try:
        return json.loads(read_each([directory / ".zattrs"])[0]).get("write_completed") is True
    except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError):
        return False


def _by_our_names(directory: Directory) -> dict[str, str]:
    """Return the paths of the arrays by their Meshwright names."""
    stored: dict[str, str] = {}
    for path in _array_names(directory):
        if (other := stored.setdefault(_our_name(path), path)) != path:
            raise CheckpointError(f"{directory} has two arrays named {_our_name(path)}: {other} and {path}.")
    return stored


def _array_names(directory: Directory) -> list[str]:
    """Return the paths of the arrays. A key that contains a slash makes nested directories."""
    files = [path.rpartition("/") for path in _files(directory)]
    arrays = {above for above, _, name in files if name == _ARRAY}
    chunked = {above for above, _, name in files if above and _CHUNK.fullmatch(name)}
    # A folder within an array's holds chunks of the array: `0.1` may also be stored as `0/1`.
    if lacking := sorted(
        folder for folder in chunked - arrays if arrays.isdisjoint(map(str, PurePosixPath(folder).parents))
    ):
        raise DamagedError(
            f"{directory} has chunks, but no {_ARRAY}, for {', '.join(lacking[:10])}. Copy it again, "
            "with its hidden files."
        )
    return sorted(arrays)


def _may_lack_chunks(directory: Directory, paths: Sequence[str]) -> list[bool]:
    """Return for each array whether it has a fill value, so that chunks may be missing; seqax writes none."""

    def has_fill_value(content: bytes) -> bool:
        try:
            return json.loads(content).get("fill_value") is not None
        except (ValueError, AttributeError):
            # Opening the array will report it.
            return False

    return list(map(has_fill_value, read_each([directory / path / _ARRAY for path in paths])))


def _files(directory: Directory) -> Iterable[str]:
    if isinstance(directory, ObjectPath):
        return [key.removeprefix(directory.key).lstrip("/") for key in directory.below()]
    return [str(path.relative_to(directory)) for path in directory.rglob("*")]


def _our_name(stored: str) -> str:
    """Return the Meshwright name of an array whose name is a `keystr`; other names stay the same."""
    keys, end = [], 0
    while match := _KEY.match(stored, end):
        keys.append(_key(match))
        end = match.end()
    return stored if end < len(stored) else tree.name_of(keys)


def _joined(name: str) -> str:
    """Return the keys of a name, a Meshwright name or a `keystr`, joined by nothing."""
    return "".join(tree.keys_of(_KEY.sub(_key, name))).replace("/", "")


def _key(match: re.Match[str]) -> str:
    return ast.literal_eval(match["text"]) if match["text"] else match["index"] or match["name"]


READER = Reader("seqax", _recognises, _open, _steps)


_TOKENS, _STARTS = "encoded_tokens", "seq_starts"


def is_flat_tokens(directory: Directory) -> bool:
    """Return whether a directory is a group of flat tokens, one split of a data set."""
    return all((directory / name / _ARRAY).is_file() for name in (_TOKENS, _STARTS))


def splits_of(directory: Directory) -> list[str]:
    """Return the names of the splits of a data set of flat tokens; none if it is something else."""
    return [name for name in ("train", "validation") if is_flat_tokens(directory / name)]


def open_flat_tokens(directory: Directory) -> LazyArray | None:
    """Return the tokens of a split, uint32[tokens]; None if there are none."""
    if not is_flat_tokens(directory):
        return None
    spec = {"driver": "zarr", "path": _TOKENS, "fill_missing_data_reads": False}
    tokens = open_arrays(directory, store_of(directory), {_TOKENS: spec})[_TOKENS]
    if tokens.ndim != 1 or tokens.dtype != np.uint32:
        raise DamagedError(
            f"{directory}/{_TOKENS} is {tokens.dtype}{list(tokens.shape)}, not uint32[tokens]."
        )
    return tokens
