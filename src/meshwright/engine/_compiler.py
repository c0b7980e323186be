"""The options of the compiler for the step of a run, and the lines that say what they are."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import jax
from jax.sharding import AbstractMesh, Mesh

from meshwright.engine._errors import errors_naming
from meshwright.engine._settings import Compile
from meshwright.shown import human_bytes
from meshwright.train import CompilerOptions, check_compiler_options, known_options, recommended_options

_MEMORY_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION"


@dataclass(frozen=True)
class StepOptions:
    """The options of the compiler for a step."""

    kind: str
    """The kind of the devices."""
    options: CompilerOptions
    """The options that are set."""
    left_out: Sequence[str] = ()
    """The names of recommended options that the compiler does not know."""
    has_none: bool = False
    """True if recommendations were asked for, and there are none for these devices."""
    settings: Compile = field(default_factory=Compile)
    """The settings that they are made from."""
    memory_nbytes: int | None = None
    """The bytes of a GPU's memory that JAX has taken for arrays; None if it does not take a share of it."""

    def told(self) -> Iterator[str]:
        """Yield lines about what is set, if anything is."""
        if self.options:
            values = ", ".join(f"{name}={value}" for name, value in self.options.items())
            yield f"options of the compiler for {self.kind}: {values}"
        if self.memory_nbytes is not None:
            share = os.environ.get(_MEMORY_SHARE, "0.75, as it is not set")
            taken = human_bytes(self.memory_nbytes)
            yield f"{taken} of a device's memory for arrays: {_MEMORY_SHARE}={share}"

    def warnings(self) -> Iterator[str]:
        """Yield lines about what was asked for and is not set."""
        if self.has_none:
            yield f"compile.recommended: there are no recommended options for {self.kind}; none is set"
        if self.left_out:
            names = f"{', '.join(self.left_out)}; left out"
            yield f"compile.recommended: the compiler of jax {jax.__version__} does not know {names}"


def step_options(settings: Compile, mesh: Mesh | AbstractMesh) -> StepOptions:
    """Return the options for a step on a mesh, each of which the compiler knows.

    Args:
      settings: The settings of the compiler.
      mesh: The mesh. On an abstract one nothing is compiled, and so nothing is set.

    Raises:
      UsageError: The compiler does not know an option of the user, or refuses its value.
    """
    if isinstance(mesh, AbstractMesh):
        return StepOptions("no device", {}, settings=settings)
    devices = list(mesh.devices.flat)
    with errors_naming("compile.options"):
        check_compiler_options(settings.options, devices)
    found = recommended_options(devices) if settings.recommended else {}
    others = {name: value for name, value in found.items() if name not in settings.options}
    known, left_out = known_options(others, devices)
    has_none = settings.recommended and not found
    options, memory = {**known, **settings.options}, _memory_taken(mesh.local_devices[0])
    return StepOptions(devices[0].device_kind, options, left_out, has_none, settings, memory)


def _memory_taken(device: jax.Device) -> int | None:
    """Return the bytes that JAX may take of the memory of a GPU in this process; None for other devices."""
    is_here = device.platform == "gpu" and device in jax.local_devices()
    return (device.memory_stats() or {}).get("bytes_limit") if is_here else None
