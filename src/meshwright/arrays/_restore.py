"""Source + target -> arrays on the mesh; without a target, nested dictionaries of all that there is."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar, overload

import jax
import numpy as np

from meshwright import tree
from meshwright.arrays._keys import is_key
from meshwright.arrays._lazy import LazyArray
from meshwright.arrays._match import Assign, Fallback, matched
from meshwright.arrays._source import Source
from meshwright.arrays._turned import read_as
from meshwright.process import together

_NUM_THREADS = 2  # while one copies, the other puts on devices
_LARGE = 1 << 20  # bytes

T = TypeVar("T")

Structs: TypeAlias = "jax.ShapeDtypeStruct | Mapping[str, Structs] | Sequence[Structs]"
"""A tree of structs alone. What is restored into it is of arrays, and so of another type."""


@overload
def restore(
    source: Source,
    target: Structs,
    *,
    assign: Assign = ...,
    fallback: Fallback | None = ...,
    ignore: str | None = ...,
) -> Any: ...
@overload
def restore(
    source: Source,
    target: T,
    *,
    assign: Assign = ...,
    fallback: Fallback | None = ...,
    ignore: str | None = ...,
) -> T: ...


def restore(
    source: Source,
    target: Any,
    *,
    assign: Assign = (),
    fallback: Fallback | None = None,
    ignore: str | None = None,
) -> Any:
    r"""Return `target` with each leaf replaced by the array of that name in `source`.

    Leaves of `target` are arrays or `ShapeDtypeStruct`s; those with a sharding become global arrays
    with it, those without become NumPy arrays, and Python numbers become Python numbers. Mesh and
    number of processes of the writer do not matter: each process reads what its own devices need, or where
    that is a little of every chunk, its share of the chunks, and the devices exchange what they need.
    Collective, where an array of `target` is of several processes.

    Args:
      source: The arrays to read: what `open_source` returns, or of one step what `Checkpoints.source` does.
      target: What is wanted, leaf by leaf, each of the shape and dtype that was saved. To type checkers the
        result is of its type; of a tree of structs alone, which become arrays, it is `Any`.
      assign: Other names for what is wanted: pairs of a pattern for names in `target` (see
        `meshwright.patterns`) and the name in `source`, `("params/(.*)", r"model/\1")`. The first pattern
        that matches decides, and one saved array may be assigned to many. None instead of a name leaves it
        to `fallback`. A pattern that decides nothing is an error, unless it is `mw.optional`.
      fallback: A tree with the values of what `source` lacks, or a function that makes it, which is
        called if anything is lacking. Where `source` has a value, too, that is taken. The arrays of the
        fallback are used, not copied.
      ignore: A pattern for names in `source` that need not be wanted. One that matches none is an error.

    Raises:
      CheckpointError: Names, shapes or dtypes differ, and then all differences are listed; or a
        piece is damaged.
      UsageError: A pattern is no regular expression, or decides nothing.
    """
    read = partial(read_for, source, target, assign=assign, fallback=fallback, ignore=ignore)
    return (together(read) if _is_of_several_processes(target) else read())()


def read_for(
    source: Source,
    target: T,
    *,
    assign: Assign = (),
    fallback: Fallback | None = None,
    ignore: str | None = None,
) -> Callable[[], T]:
    """Do all of `restore` that one process may fail in alone, and return a function that does the rest.

    That is collective, where an array of `target` is of several processes.

    Arguments and errors: as those of `restore`.
    """
    # What a function makes as a fallback is let go of before anything is read, but for what is used.
    found = restore_lazily(source, target, assign=assign, fallback=fallback, ignore=ignore)
    wanted, structure = jax.tree.flatten(target)
    values = structure.flatten_up_to(found)
    read = deque(_read_all(wanted, values))  # each is let go of when it is where it is wanted
    return lambda: structure.unflatten(
        [_finished(*pair, read.popleft()) for pair in zip(wanted, values, strict=True)]
    )


def restore_lazily(
    source: Source,
    target: tree.PyTree,
    *,
    assign: Assign = (),
    fallback: Fallback | None = None,
    ignore: str | None = None,
) -> tree.PyTree:
    """Return `target` with each leaf replaced by a `LazyArray`: all is checked, but nothing read.

    What comes from `fallback` is there as it is. Such a tree can be saved again, piece by piece.

    Arguments and errors: as those of `restore`.
    """
    found = matched(source, tree.named_leaves(target), assign, fallback, ignore)
    return tree.map_named(lambda name, _: found[name], target)


def _read_all(wanted: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """Read what is large on threads, the rest here: threads in Python would only hold each other up."""
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        reading = [
            threads.submit(_read, *pair) if _is_large(pair[1]) else pair
            for pair in zip(wanted, found, strict=True)
        ]
        return [one.result() if isinstance(one, Future) else _read(*one) for one in reading]


def _is_large(found: Any) -> bool:
    return isinstance(found, LazyArray) and found.nbytes >= _LARGE


def _read(wanted: Any, found: Any) -> Any:
    """Return a saved array, read, in the place that is wanted; a fallback's value as it is."""
    if not isinstance(found, LazyArray):
        return found
    sharding = getattr(wanted, "sharding", None)
    if sharding is None:
        return np.asarray(found)
    return _on_devices(found, sharding if is_key(wanted) else read_as(found, sharding))


def _on_devices(found: LazyArray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Read what this process's devices need, each part once for all that hold it, and put it there."""
    wanted: Any = sharding.addressable_devices_indices_map(found.shape).values()
    indices = {_key(index): index for index in wanted}
    parts = dict(zip(indices, found.read_parts(list(indices.values())), strict=True))
    return jax.make_array_from_callback(
        found.shape, sharding, lambda index: parts[_key(index)], dtype=found.dtype
    )


def _key(index: Any) -> tuple[tuple[int | None, int | None], ...]:
    return tuple((part.start, part.stop) for part in index)


def _finished(wanted: Any, found: Any, read: Any) -> Any:
    """Return what was read, or a fallback's value, in the form that is wanted. May be collective."""
    if not isinstance(found, LazyArray):
        return _placed(wanted, found)
    if is_key(wanted):
        return jax.random.wrap_key_data(read, impl=found.key_impl)
    if not hasattr(wanted, "dtype"):
        return read.item()
    if isinstance(read, jax.Array) and read.sharding != wanted.sharding:
        return jax.device_put(read, wanted.sharding)
    return _as_scalar(wanted, read)


def _placed(wanted: Any, value: Any) -> Any:
    sharding = getattr(wanted, "sharding", None)
    if sharding is not None:
        return jax.device_put(value, sharding)
    if is_key(wanted):
        return value
    return _as_scalar(wanted, np.asarray(value)) if hasattr(wanted, "dtype") else np.asarray(value).item()


def _is_of_several_processes(target: tree.PyTree) -> bool:
    shardings = (getattr(x, "sharding", None) for x in jax.tree.leaves(target))
    return any(sharding is not None and not sharding.is_fully_addressable for sharding in shardings)


def _as_scalar(wanted: Any, array: np.ndarray) -> Any:
    """Return a NumPy scalar where one is wanted, otherwise the array."""
    return array[()] if isinstance(wanted, np.generic) else array


def load(source: Source) -> dict[str, Any]:
    """Return all of `source` as nested dictionaries of NumPy arrays: lists and tuples too, by number.

    Typed PRNG keys are such. For other dtypes `cast` it before; integers stay as they are:
    `load(cast(source, [(".*", "bfloat16")]))`.

    Raises:
      InputError: A name lies below another, as `a/b` and `a` do in a file of names.
      DamagedError: A piece is damaged.
    """
    return restore(source, tree.nested({name: _struct(x) for name, x in source.arrays().items()}))


def load_lazily(source: Source) -> dict[str, Any]:
    """Return all of `source` as nested dictionaries of `LazyArray`s; nothing is read.

    Raises:
      InputError: A name lies below another.
    """
    return tree.nested(source.arrays())


def _struct(array: LazyArray) -> jax.ShapeDtypeStruct:
    struct = jax.ShapeDtypeStruct(array.shape, array.dtype)
    if array.key_impl is None:
        return struct
    return jax.eval_shape(partial(jax.random.wrap_key_data, impl=array.key_impl), struct)
