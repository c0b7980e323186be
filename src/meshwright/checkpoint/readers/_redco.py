"""redco's checkpoints.

    ckpts/last_ckpt.txt         the name of the newest: "last"
    ckpts/last/
      params/                   a tree of Orbax's
      opt_state/                another, if the optimizer's state was saved
      params_shape.pkl          a pickle, which nothing here opens
      info.json                 {"step": 6, "epoch_idx": 1, "rng": [1775173478, 1498807459], …}, written last

redco writes over what is there, so that a save that was killed leaves parts of two. Leaves are called
`params/…` and `opt_state/…`, as the deployer's own.

Source: `deployers/ckpt_utils.py` of github.com/tanyuqian/redco.
"""

from meshwright.checkpoint._lazy import LazyArray
from meshwright.checkpoint._object_path import Directory
from meshwright.checkpoint.readers._file import head, read_document
from meshwright.checkpoint.readers._orbax import open_tree
from meshwright.checkpoint.readers._reader import Foreign, Reader
from meshwright.errors import CheckpointError

_ALL, _LAST = "ckpts", "last_ckpt.txt"
_PARAMS, _OPT_STATE, _SHAPES, _INFO = "params", "opt_state", "params_shape.pkl", "info.json"
_SAVED = "_CHECKPOINT_METADATA"
_OTHERWISE = "Take another checkpoint."


def _recognises(place: Directory) -> bool:
    return _directory(place) is not None


def _directory(place: Directory) -> Directory | None:
    """Return the directory of a checkpoint: `place`, or the one that was saved last in it."""
    if _is_checkpoint(place):
        return place
    for saved in (place, place / _ALL):
        name = head(saved / _LAST, 1000).decode(errors="replace").strip()
        if name and "/" not in name and _is_checkpoint(saved / name):
            return saved / name
    return None


def _is_checkpoint(place: Directory) -> bool:
    """Say whether a directory holds a checkpoint, or what became of one."""
    has_shapes, has_info = (place / _SHAPES).is_file(), (place / _INFO).is_file()
    has_trees = (place / _PARAMS).is_dir() or (place / _OPT_STATE).is_dir()
    is_among_others = place.parent.name == _ALL or (place.parent / _LAST).is_file()
    return (has_shapes and has_info) or (has_trees and (has_shapes or has_info or is_among_others))


def _open(place: Directory) -> Foreign:
    directory = _directory(place)
    assert directory is not None
    _check_whole(directory)
    info = read_document(directory / _INFO)
    held = {
        f"{part}/{name}": array
        for part in (_PARAMS, _OPT_STATE)
        for name, array in _tree(directory / part).items()
    }
    return Foreign(directory, READER.name, held, info.get("step"), extra={"info": info})


def _tree(directory: Directory) -> dict[str, LazyArray]:
    return open_tree(directory) if directory.is_dir() else {}


def _check_whole(directory: Directory) -> None:
    """Raise a `CheckpointError` if a save did not come to its end."""
    has_params, has_info = (directory / _PARAMS).is_dir(), (directory / _INFO).is_file()
    if lacking := [name for name, has in ((_PARAMS, has_params), (_INFO, has_info)) if not has]:
        raise CheckpointError(
            f"{directory} has no {' and no '.join(lacking)}: redco was killed while it saved. {_OTHERWISE}"
        )
    params, opt_state = _begun(directory / _PARAMS), _begun(directory / _OPT_STATE)
    if params is not None and opt_state is not None and params > opt_state:
        raise CheckpointError(
            f"{directory} has {_PARAMS} of a later save than {_OPT_STATE}: redco was killed between the two, "
            f"or saved again without the optimizer's state. {_OTHERWISE} If it was the latter, take "
            f"{_OPT_STATE} away."
        )


def _begun(tree: Directory) -> int | None:
    """Return when the save of a tree began, in nanoseconds, as far as Orbax says so."""
    try:
        return read_document(tree / _SAVED).get("init_timestamp_nsecs")
    except FileNotFoundError:
        return None


READER = Reader("redco", _recognises, _open)
