"""`meshwright doctor`: check what a run needs on this machine."""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright.base import _internal as base
from meshwright.cli._parser import Commands, Result
from meshwright.cli._recipe import use_fake_devices
from meshwright.errors import EXIT_DONE, EXIT_FAILED, EXIT_HUNG, InputError, UsageError
from meshwright.nn import _internal as nn
from meshwright.parallel import _internal as parallel
from meshwright.processes import _internal as processes

PACKAGES = ("meshwright", "jax", "jaxlib", "numpy", "optax", "rich", "protobuf")
VARIABLES = (
    "JAX_",
    "XLA_",
    "SLURM_",
    "TPU_",
    "CUDA_VISIBLE_DEVICES",
    "MASTER_",
    "WORLD_SIZE",
    "RANK",
    "TF_GPU_",
)
_PROBLEM = "problem: "
_JOIN_SECONDS = 60
"""Time to wait for the other processes."""
_ALWAYS = ("gone", "stopped by a signal", "does not answer")
"""The states of processes that do not go on, whatever is usual."""


def add(commands: Commands) -> None:
    """Add the command."""
    command = commands.add(
        "doctor",
        doctor,
        epilog="Exit code 1 if a check fails. On several machines: srun meshwright doctor",
    )
    command.add_argument(
        "place",
        nargs="?",
        metavar="RUN",
        help="the directory or URL of a run that goes on: show where each of its processes stands instead; "
        "exit code 5 if one of them stands still for longer than is usual",
    )
    command.add_argument(
        "--attention",
        action="store_true",
        help="also compute attention in random cases, and compare values and gradients with the definition",
    )


def doctor(options: argparse.Namespace) -> Result:
    """Report versions, devices and processes; try to compile and to write. Exit code 1 if a check fails.

    Under a launcher, all processes check together that they can run one program, and process 0 reports.

    With `--attention`, also hold attention as it is computed here to its definition. With a run, show where
    its processes stand instead.
    """
    if options.place is not None:
        return _ask(options.place)
    import dataclasses
    import importlib.metadata
    import platform

    use_fake_devices(options.fake_devices)
    tried = {name: _tried(probe) for name, probe in PROBES.items()}
    if _number_and_total()[1] > 1:
        tried |= {name: _tried(probe) for name, probe in TOGETHER.items()}
    document: dict[str, Any] = {
        "variables": {key: value for key, value in sorted(os.environ.items()) if key.startswith(VARIABLES)},
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        **tried,
    }
    is_well = not any(answer.startswith(_PROBLEM) for answer in tried.values())
    text = _text(document)
    if options.attention:
        proved = _proved()
        is_well = is_well and all(case.passed for case in proved)
        document["attention"] = [dataclasses.asdict(case) | {"holds": case.passed} for case in proved]
        text += "\n\n" + _table(proved)
    if is_well and _number_and_total()[0] > 0:
        text = "ok"  # of all the others on one line of the launcher
    return text, document, EXIT_DONE if is_well else EXIT_FAILED


def _proved() -> list[Any]:
    """Return cases of attention on one device: of the forms that are chosen."""
    import jax

    with parallel.in_mesh(parallel.make_mesh("data=1", jax.local_devices()[:1])):
        return [*nn.self_check()]


def _table(proved: list[Any]) -> str:
    """Return a table of cases of attention, with what each missed its definition by."""
    head = ("attention", "dtype", "mask", "form", "values", "gradients", "limit", "")
    rows = [
        (
            *(case.shape, case.dtype, case.mask, case.form),
            *(f"{number:.1e}" for number in (case.values, case.gradients, case.limit)),
            "ok" if case.passed else "problem",
        )
        for case in proved
    ]
    return "\n".join(base.aligned([head, *rows], right=(4, 5, 6), width=base.screen_width()))


def _tried(probe: Callable[[], str]) -> str:
    """Return the answer of a probe, or its error as text, so that the other probes still run."""
    try:
        return probe()
    except Exception as error:  # a report about broken things must not break itself
        return f"{_PROBLEM}{str(error) or type(error).__name__}"


def _number_and_total() -> tuple[int, int]:
    """Return the number of this process and that of all."""
    import jax

    return (jax.process_index(), jax.process_count()) if jax.distributed.is_initialized() else (0, 1)


def _processes() -> str:
    """Return the launcher that the environment variables name, after all its processes have come."""
    cluster = processes.start_processes(timeout_seconds=_JOIN_SECONDS)
    come = f"; all {cluster.num_processes} have come" if cluster.num_processes != 1 else ""
    return f"{cluster.reason}{come}"


def _devices() -> str:
    import jax

    devices = jax.local_devices()
    return f"{len(devices)} × {devices[0].device_kind}"


def _hardware() -> str:
    """Return the hardware's name, which mesh rules are matched against."""
    return parallel.hardware()


def _memory() -> str:
    import jax

    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return "not reported by this device" if limit is None else f"{limit / 2**30:.1f} GiB each"


def _compile() -> str:
    import jax
    import jax.numpy as jnp

    started = time.perf_counter()
    jax.jit(lambda x: x @ x.T)(jnp.ones((128, 128))).block_until_ready()
    return f"ok, {time.perf_counter() - started:.2f} s"


def _write() -> str:
    import tempfile

    with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
        file.write(b"written")
    return f"ok, {Path.cwd()}"


def _cache() -> str:
    return f"ok, {base.user_cache()}"  # a warning says if it is not where it should be


PROBES = {
    "processes": _processes,
    "devices": _devices,
    "hardware": _hardware,
    "memory": _memory,
    "compile": _compile,
    "write": _write,
    "cache": _cache,
}


def _equal() -> str:
    processes.compare_devices()
    return "the same number and kind on all processes"


def _clocks() -> str:
    processes.gather_on_hosts("the beginning of the clocks", None)
    times = processes.gather_on_hosts("the clocks", time.time())
    problem = processes.describe_clocks(times)
    return _PROBLEM + problem if problem else f"within {max(times) - min(times):.1f} s"


def _exchange() -> str:
    started = time.perf_counter()
    processes.barrier("doctor")
    return f"ok, the first took {time.perf_counter() - started:.1f} s"


def _shared() -> str:
    if processes.is_shared(Path.cwd()):
        return f"ok, {Path.cwd()}"
    return f"{_PROBLEM}not all processes see the files of process 0 in {Path.cwd()}"


TOGETHER = {
    "devices of all": _equal,
    "clocks": _clocks,
    "exchange": _exchange,
    "shared directory": _shared,
}
"""Further probes where there are several processes. All of them make each one."""


def _text(document: dict[str, Any]) -> str:
    rows: list[tuple[str, str]] = []
    for name, value in document.items():
        lines = [f"{key} {part}" for key, part in value.items()] if isinstance(value, dict) else [str(value)]
        rows += [(name if i == 0 else "", line) for i, line in enumerate(lines or ["none"])]
    width = base.screen_width()
    return "\n".join(base.wrapped(f"{name:10}  {line}", width=width, indent=" " * 12) for name, line in rows)


def _ask(place: str) -> Result:
    """Show what each process of a run does, and what follows. Takes a few seconds; exit code 5 if the run
    hangs.
    """
    if "=" in place and not base.is_address(place) and not Path(place).exists():
        raise UsageError(
            f"meshwright doctor takes no settings, and {place!r} is one. It takes the directory of a run."
        )
    import dataclasses

    directory = processes.board_directory(place)
    seen = processes.look(directory)
    if not seen:
        raise InputError(
            f"no process of {place} tells where it stands: there are no files in {directory}.\n  Either the "
            "run does not go on, or it has no watchdog, or it is in a store and runs elsewhere: ask there."
        )
    hangs = any(map(_hangs, seen))
    entries = [dataclasses.asdict(each) for each in seen]
    readings = {each.process: each.entry.readings for each in seen if each.entry is not None}
    slow = processes.slow_processes([readings])
    notes = [f"At the last reading, {each}." for each in slow]
    text = "\n".join([processes.verdict(seen, width=base.screen_width()), *notes])
    document = {"processes": entries, "hangs": hangs, "slow": [dataclasses.asdict(each) for each in slow]}
    return text, document, EXIT_HUNG if hangs else EXIT_DONE


def _hangs(seen: "processes.ProcessStatus") -> bool:
    entry = seen.entry
    if seen.state in _ALWAYS:
        return True
    return entry is not None and entry.limit_seconds is not None and entry.still_seconds > entry.limit_seconds
