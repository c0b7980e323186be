"""The end of a run whose devices have no memory left: what held it, and what helps, in one message."""

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Iterator

import jax

from meshwright.base._internal import aligned, human_bytes, tree
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.errors import OutOfMemoryError, UsageError
from meshwright.parallel._internal import SPLITTING_STATE, device_bytes, plain_axes

log = logging.getLogger("meshwright")

_MOST_ROWS = 8
_ADVICE = f"What helps: a smaller batch, microbatches=2, compute_dtype='bfloat16', or {SPLITTING_STATE}."


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether XLA says that a device, or the host of CPU devices, has no memory left."""
    return isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


@contextlib.contextmanager
def explaining_out_of_memory(settings: Settings, training: Training) -> Iterator[None]:
    """Replace XLA's error of a full memory by one that says what held it, and what helps.

    Likewise the one of an FFT that it cannot compute on CPUs.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "fft_thunk" in str(error):
            raise UsageError(
                "XLA's program for CPUs cannot compute this FFT, as the mesh splits what is transformed: "
                f"{_first_line(error)}\n"
                f"  Here try a mesh of {' and '.join(plain_axes())} alone. Accelerators have another FFT."
            ) from error
        if not is_out_of_memory(error):
            raise
        log.info("XLA's own message", exc_info=error)
        rows = _held(training)
        lines = [(human_bytes(nbytes), name) for nbytes, name in rows[:_MOST_ROWS]]
        if rest := rows[_MOST_ROWS:]:
            lines.append((human_bytes(sum(nbytes for nbytes, _ in rest)), f"{len(rest)} others"))
        table = "\n".join(aligned(lines, right=(0,), indent="    "))
        raise OutOfMemoryError(
            f"the memory of a device is exhausted: {_first_line(error)}\n"
            f"  One device holds, or would hold:\n{table}\n  {_remedies(settings)}"
        ) from error


def _first_line(error: Exception) -> str:
    """Return XLA's first sentence, with its bytes as people read them."""
    line = str(error).partition("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ").strip()
    match = re.search(r"(\d{4,}) ?bytes", line)
    return f"{line} ({human_bytes(int(match[1]))})" if match else line


def _remedies(settings: Settings) -> str:
    try:
        return (settings.remedies() or _ADVICE).replace("\n", "\n  ")
    except Exception:  # a plan must not hide the error that it is about
        log.warning("no plan of the step could be made", exc_info=True)
        return f"There is no plan of this step: the log says why.\n  {_ADVICE}"


def _held(training: Training) -> list[tuple[int, str]]:
    """Return the bytes on one device of each array of the run, the work of a step and other arrays."""
    named = {f"state: {name}": x for name, x in tree.named_leaves(training.target).items()}
    rows = [(device_bytes(x, x.sharding), name) for name, x in named.items()]
    for name, x in tree.named_leaves(training.batch).items():
        rows.append((device_bytes(x, training.layout.batch_sharding), f"batch: {name or 'the whole'}"))
    rows += _others(training)
    if work := _work(training):
        rows.append((work, "the work of a step: activations, gradients and others, as compiled"))
    return sorted(rows, reverse=True)


def _work(training: Training) -> int:
    """Return the bytes that the compiled step needs besides its arguments; 0 if it is not compiled."""
    if not training.step.num_shapes:
        return 0
    analysis = training.step.compile(training.target, training.batch).memory_analysis()
    return 0 if analysis is None else analysis.temp_size_in_bytes


def _others(training: Training) -> list[tuple[int, str]]:
    """Return the live arrays that are of neither the state nor a batch, those of one shape together."""
    leaves = [*jax.tree.leaves(training.target), *jax.tree.leaves(training.batch)]
    shapes = {(x.shape, str(x.dtype)) for x in leaves}
    alive = [x for x in jax.live_arrays() if not x.is_deleted() and (x.shape, str(x.dtype)) not in shapes]
    counted = Counter((x.shape, str(x.dtype), device_bytes(x, x.sharding)) for x in alive)
    return [
        (times * nbytes, f"other arrays of the program: {times} × {dtype}{list(shape)}")
        for (shape, dtype, nbytes), times in counted.items()
    ]
