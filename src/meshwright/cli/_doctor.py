"""`meshwright doctor`: check what a run needs on this machine."""

import argparse
import dataclasses
import importlib.metadata
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwright.base._internal import aligned, screen_width, wrapped
from meshwright.cli._run_status import ask
from meshwright.cli._train import Result, use_fake_devices
from meshwright.errors import EXIT_DONE, EXIT_FAILED

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


def doctor(options: argparse.Namespace) -> Result:
    """Report versions, devices and processes; try to compile and to write. Exit code 1 if a check fails.

    Under a launcher, all processes check together that they can run one program, and process 0 reports.

    With `--attention`, also hold attention as it is computed here to its definition. With a run, show where
    its processes stand instead.
    """
    if options.place is not None:
        return ask(options.place)
    if options.fake_devices:
        use_fake_devices(options.fake_devices)
    tried = {name: _tried(probe) for name, probe in PROBES.items()}
    if _number_and_total()[1] > 1:
        tried |= {name: _tried(probe) for name, probe in TOGETHER.items()}
    found: dict[str, Any] = {
        "variables": {key: value for key, value in sorted(os.environ.items()) if key.startswith(VARIABLES)},
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        **tried,
    }
    is_well = not any(said.startswith(_PROBLEM) for said in tried.values())
    text = _text(found)
    if options.attention:
        proved = _proved()
        is_well = is_well and all(each.holds for each in proved)
        found["attention"] = [dataclasses.asdict(each) | {"holds": each.holds} for each in proved]
        text += "\n\n" + _table(proved)
    if is_well and _number_and_total()[0] > 0:
        text = "ok"  # of all the others on one line of the launcher
    return text, found, EXIT_DONE if is_well else EXIT_FAILED


def _proved() -> list[Any]:
    """Return cases of attention on one device: of the forms that are chosen."""
    import jax

    from meshwright.nn import _internal as nn
    from meshwright.parallel import _internal as sharding

    with sharding.in_mesh(sharding.make_mesh("data=1", jax.local_devices()[:1])):
        return [*nn.proofs()]


def _table(proved: list[Any]) -> str:
    """Return a table of cases of attention, with what each missed its definition by."""
    head = ("attention", "dtype", "mask", "form", "values", "gradients", "limit", "")
    rows = [
        (
            *(each.shape, each.dtype, each.mask, each.form),
            *(f"{number:.1e}" for number in (each.values, each.gradients, each.limit)),
            "ok" if each.holds else "problem",
        )
        for each in proved
    ]
    return "\n".join(aligned([head, *rows], right=(4, 5, 6), width=screen_width()))


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
    from meshwright.processes import _internal as processes

    cluster = processes.start_processes(timeout_seconds=_JOIN_SECONDS)
    come = f"; all {cluster.num_processes} have come" if cluster.num_processes != 1 else ""
    return f"{cluster.reason}{come}"


def _devices() -> str:
    import jax

    devices = jax.local_devices()
    return f"{len(devices)} × {devices[0].device_kind}"


def _hardware() -> str:
    """Return the hardware's name, which mesh rules are matched against."""
    from meshwright.parallel import _internal as sharding

    return sharding.hardware()


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
    with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
        file.write(b"written")
    return f"ok, {Path.cwd()}"


def _cache() -> str:
    from meshwright.base import _internal as storage

    return f"ok, {storage.user_cache()}"  # a warning says if it is not where it should be


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
    from meshwright.processes import _internal as processes

    processes.compare_devices()
    return "the same number and kind on all processes"


def _clocks() -> str:
    from meshwright.processes import _internal as processes

    processes.gather_on_hosts("the beginning of the clocks", None)
    times = processes.gather_on_hosts("the clocks", time.time())
    return _PROBLEM + told if (told := processes.describe_clocks(times)) else f"within {_spread(times):.1f} s"


def _spread(times: list[float]) -> float:
    return max(times) - min(times)


def _exchange() -> str:
    from meshwright.processes import _internal as processes

    started = time.perf_counter()
    processes.barrier("doctor")
    return f"ok, the first took {time.perf_counter() - started:.1f} s"


def _shared() -> str:
    from meshwright.processes import _internal as processes

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


def _text(found: dict[str, Any]) -> str:
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        lines = [f"{key} {part}" for key, part in value.items()] if isinstance(value, dict) else [str(value)]
        rows += [(name if i == 0 else "", line) for i, line in enumerate(lines or ["none"])]
    width = screen_width()
    return "\n".join(wrapped(f"{name:10}  {line}", width=width, indent=" " * 12) for name, line in rows)
