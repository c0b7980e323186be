"""Reads redco's checkpoints.

    ckpts/last_ckpt.txt         the name of the newest checkpoint: "last"
    ckpts/last/
      params/                   an Orbax tree
      opt_state/                another, if the optimizer's state was saved
      params_shape.pkl          a pickle, which is never opened here
      info.json                 {"step": 6, "epoch_idx": 1, "rng": [1775173478, 1498807459], …}, written last

redco overwrites the parts of a checkpoint one after the other, so a save that was killed leaves parts of two
saves. Leaves are called `params/…` and `opt_state/…`, as in the deployer's own checkpoints.

Source: `deployers/ckpt_utils.py` of github.com/tanyuqian/redco.
"""

from meshwright.base._internal import Directory, ObjectPath
from meshwright.checkpoints._formats.readers._file import head, read_document
from meshwright.checkpoints._formats.readers._orbax import TEMPORARY, open_tree
from meshwright.checkpoints._formats.readers._reader import Foreign, Reader
from meshwright.errors import CheckpointError

_ALL, _LAST = "ckpts", "last_ckpt.txt"
_PARAMS, _OPT_STATE, _SHAPES, _INFO = "params", "opt_state", "params_shape.pkl", "info.json"
_SAVED = "_CHECKPOINT_METADATA"
_COARSE = 2 * 10**9
"""Nanoseconds to which archives round the times of files."""
_OTHERWISE = "Take another checkpoint."


def _recognises(path: Directory) -> bool:
    return _directory(path) is not None


def _directory(path: Directory) -> Directory | None:
    """Return the directory of a checkpoint: `path`, or the one that `last_ckpt.txt` in it names."""
    if _is_checkpoint(path):
        return path
    for saved in (path, path / _ALL):
        name = head(saved / _LAST, 1000).decode(errors="replace").strip()
        if name and "/" not in name and (_is_checkpoint(saved / name) or not (saved / name).is_dir()):
            return saved / name
    return None


def _is_checkpoint(path: Directory) -> bool:
    """Return whether a directory holds a checkpoint, complete or not."""
    has_shapes, has_info = (path / _SHAPES).is_file(), (path / _INFO).is_file()
    has_trees = (path / _PARAMS).is_dir() or (path / _OPT_STATE).is_dir()
    is_among_others = path.parent.name == _ALL or (path.parent / _LAST).is_file()
    return (has_shapes and has_info) or (has_trees and (has_shapes or has_info or is_among_others))


def _open(path: Directory) -> Foreign:
    directory = _directory(path)
    assert directory is not None
    _check_whole(directory)
    info = read_document(directory / _INFO)
    arrays = {
        f"{part}/{name}": array
        for part in (_PARAMS, _OPT_STATE)
        if (directory / part).is_dir()
        for name, array in open_tree(directory / part).items()
    }
    return Foreign(directory, READER.name, arrays, info.get("step"), extra={"info": info})


def _check_whole(directory: Directory) -> None:
    """Raise a `CheckpointError` if a save was not completed."""
    if not directory.is_dir():
        raise CheckpointError(f"{directory} does not exist, but {_LAST} names it as the last that was saved.")
    has_params, has_info = (directory / _PARAMS).is_dir(), (directory / _INFO).is_file()
    if lacking := [name for name, has in ((_PARAMS, has_params), (_INFO, has_info)) if not has]:
        raise CheckpointError(
            f"{directory} has no {' and no '.join(lacking)}: redco was killed while it saved. {_OTHERWISE}"
        )
    trees = [tree for tree in (directory / _PARAMS, directory / _OPT_STATE) if tree.is_dir()]
    if len(trees) == 1 and (unfinished := list(directory.glob(f"{_OPT_STATE}{TEMPORARY}*"))):
        raise CheckpointError(
            f"{directory} has an unfinished {unfinished[0].name} and no {_OPT_STATE}: redco was killed while "
            f"it saved. {_OTHERWISE}"
        )
    begun = [began for began, _ in map(_times, trees) if began is not None]
    # redco writes the parameters first, then the state of the optimizer, then the info file.
    if begun != sorted(begun):
        raise CheckpointError(
            f"{directory} has {_PARAMS} of a later save than {_OPT_STATE}: redco was killed between the two, "
            f"or saved again without the optimizer's state. {_OTHERWISE} In the second case, remove "
            f"{_OPT_STATE}."
        )
    if older := [tree.name for tree in trees if _is_older(directory / _INFO, tree)]:
        raise CheckpointError(
            f"{directory} has {older[-1]} of a later save than {_INFO}: redco was killed before it wrote "
            f"the step, the epoch and the random key. {_OTHERWISE}"
        )


def _is_older(file: Directory, tree: Directory) -> bool:
    """Return whether a file was written before a tree, by both the saver's clock and the disk's.

    One clock alone proves nothing: copies change times, and machines have different clocks.
    """
    _, committed = _times(tree)
    if committed is None or isinstance(file, ObjectPath) or isinstance(tree, ObjectPath):
        return False
    earliest = min(committed, (tree / _SAVED).stat().st_mtime_ns)
    return file.stat().st_mtime_ns < earliest - _COARSE


def _times(tree: Directory) -> tuple[int | None, int | None]:
    """Return the times at which the save of a tree began and ended, in nanoseconds; None if not recorded."""
    try:
        metadata = read_document(tree / _SAVED)
    except FileNotFoundError:
        return None, None
    began, ended = metadata.get("init_timestamp_nsecs"), metadata.get("commit_timestamp_nsecs")
    return began if isinstance(began, int) else None, ended if isinstance(ended, int) else None


def _steps(path: Directory) -> dict[int, Directory]:
    """Return the checkpoints of a work directory, by step; if several have the same step, one of them."""
    among = [] if _is_checkpoint(path) else [*_entries(path), *_entries(path / _ALL)]
    whole = [directory for directory in among if _is_checkpoint(directory) and (directory / _INFO).is_file()]
    numbered = ((read_document(directory / _INFO).get("step"), directory) for directory in whole)
    return dict(sorted((step, directory) for step, directory in numbered if isinstance(step, int)))


def _entries(path: Directory) -> list[Directory]:
    return sorted(path.iterdir(), key=str) if path.is_dir() else []


READER = Reader("redco", _recognises, _open, _steps)
