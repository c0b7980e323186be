"""The compiler of a run: the options for its step, and compiling for a start with other processes."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import jax
from jax.sharding import AbstractMesh, Mesh

from meshwright.base._internal import human_bytes
from meshwright.engine._directory import compiled_programs
from meshwright.engine._errors import errors_naming
from meshwright.engine._settings import Compile, Settings
from meshwright.engine._training import Training
from meshwright.errors import EXIT_DONE
from meshwright.processes import _internal as processes
from meshwright.training._internal import CompilerOptions, RunningWatchdog, check_compiler_options

_MEMORY_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION"


@dataclass(frozen=True)
class StepOptions:
    """The options of the compiler for a step."""

    kind: str
    """The kind of the devices."""
    options: CompilerOptions
    """The options that are set."""
    settings: Compile = field(default_factory=Compile)
    """The settings that they are made from."""
    memory_nbytes: int | None = None
    """The bytes of a GPU's memory that JAX has taken for arrays; None if it does not take a share of it."""

    def summary(self) -> Iterator[str]:
        """Yield lines about what is set, if anything is."""
        if self.options:
            values = ", ".join(f"{name}={value}" for name, value in self.options.items())
            yield f"options of the compiler for {self.kind}: {values}"
        if self.memory_nbytes is not None:
            share = os.environ.get(_MEMORY_SHARE, "0.75, as it is not set")
            memory = human_bytes(self.memory_nbytes)
            yield f"{memory} of a device's memory for arrays: {_MEMORY_SHARE}={share}"


def step_options(settings: Compile, mesh: Mesh | AbstractMesh) -> StepOptions:
    """Return the options for a step on a mesh, each of which the compiler knows."""
    if isinstance(mesh, AbstractMesh):
        return StepOptions("no device", {}, settings=settings)
    devices = list(mesh.devices.flat)
    with errors_naming("compile.options"):
        check_compiler_options(settings.options, devices)
    memory = _memory_taken(mesh.local_devices[0])
    return StepOptions(devices[0].device_kind, settings.options, settings, memory)


def _memory_taken(device: jax.Device) -> int | None:
    """Return the bytes that JAX may take of the memory of a GPU in this process; None for other devices."""
    is_here = device.platform == "gpu" and device in jax.local_devices()
    return (device.memory_stats() or {}).get("bytes_limit") if is_here else None


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
