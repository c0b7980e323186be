"""Options of the XLA compiler for one program."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.errors import UsageError

CompilerOptions = Mapping[str, bool | int | float | str]
"""XLA options by name, without dashes: `{"xla_gpu_enable_triton_gemm": False}`."""

_REFUSED = ("No such compile option", "While setting option")


def compiled_with(lowered: jax.stages.Lowered, options: CompilerOptions) -> jax.stages.Compiled:
    """Compile a lowered program with `options`."""
    try:
        return lowered.compile(compiler_options=dict(options) or None)  # type: ignore[arg-type]
    except jax.errors.JaxRuntimeError as error:
        why = _refusal(error)
        if why is None:
            raise
        raise UsageError(f"compiler options: {why}.\n  {_hint()}") from None


def check_compiler_options(options: CompilerOptions, devices: Sequence[jax.Device]) -> None:
    """Compile a program of one addition with `options`, which shows in milliseconds whether they are
    known.
    """
    if not options:
        return
    device = next(
        (candidate for candidate in devices if candidate.process_index == jax.process_index()), devices[0]
    )
    try:
        _small_program(device).compile(compiler_options=dict(options))  # type: ignore[arg-type]
    except jax.errors.JaxRuntimeError as error:
        why = _refusal(error)
        if why is None:
            raise
        kind = device.device_kind
        raise UsageError(f"{why}, of the compiler for {kind}.\n  {_hint()}") from None


def _refusal(error: jax.errors.JaxRuntimeError) -> str | None:
    """Return what the compiler says about an option that it refuses; None if the error is another one."""
    why = str(error).partition("\n")[0].removeprefix("INVALID_ARGUMENT: ").rstrip(".")
    return why if why.startswith(_REFUSED) else None


def _hint() -> str:
    return (
        f"The compiler is that of jax {jax.__version__}. Each version and each kind of device has its own "
        "options. Set options for one kind of device with a mesh rule: "
        'mesh_rules=(("NVIDIA H100.*", mw.parallel.override({"compile.options": {"xla_gpu_…": True}})),).'
    )


def _small_program(device: jax.Device) -> jax.stages.Lowered:
    sharding = NamedSharding(Mesh(np.array([device]), ("device",)), PartitionSpec())
    return jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((1,), np.float32, sharding=sharding))
