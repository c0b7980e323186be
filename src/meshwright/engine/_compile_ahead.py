"""Compiling for a start with other processes: the offer to the launcher, and what it then starts."""

from typing import NoReturn

import jax

from meshwright.engine._directory import compiled_programs
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.errors import EXIT_DONE
from meshwright.processes import _internal as processes
from meshwright.training._internal import RunningWatchdog


def offer_compiling_ahead(training: Training) -> None:
    """Tell the launcher that this program can be started to compile only, while it trains.

    It cannot on GPUs and TPUs, which the run holds; nor without a cache of compiled programs.
    """
    is_cpu = training.layout.mesh.devices.flat[0].platform == "cpu"
    if is_cpu and jax.config.jax_compilation_cache_dir:  # type: ignore[missing-attribute]
        processes.report_can_compile_ahead()


def only_compile(settings: Settings, training: Training, watch: RunningWatchdog) -> NoReturn:
    """Compile the step into the cache, and end the process. It opens no file of the run. Collective."""
    with compiled_programs(settings.compile.cache), watch.phase("compile"):
        for batch in (*training.other_batches, training.batch):
            training.step.compile(training.target, batch)
    processes.compare("the end of compiling", str)
    raise SystemExit(EXIT_DONE)
