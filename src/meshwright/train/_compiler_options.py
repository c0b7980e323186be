"""Options of the XLA compiler for one program."""

from collections.abc import Mapping

import jax

from meshwright.errors import UsageError

CompilerOptions = Mapping[str, bool | int | float | str]
"""XLA options by name, without dashes: `{"xla_gpu_enable_triton_gemm": False}`."""

_REFUSED = ("No such compile option", "While setting option")


def compiled_with(lowered: jax.stages.Lowered, options: CompilerOptions) -> jax.stages.Compiled:
    """Compile a lowered program with `options`.

    Args:
      lowered: The lowered program.
      options: The options of the compiler. Other options have their values from `XLA_FLAGS`.

    Raises:
      UsageError: The compiler of these devices does not know an option, or refuses its value.
    """
    try:
        return lowered.compile(compiler_options=dict(options) or None)  # type: ignore[arg-type]
    except jax.errors.JaxRuntimeError as error:
        why = str(error).partition("\n")[0].removeprefix("INVALID_ARGUMENT: ").rstrip(".")
        if not why.startswith(_REFUSED):
            raise
        raise UsageError(
            f"compiler options: {why}.\n  The compiler is that of jax {jax.__version__}. Each version and "
            "each kind of device has its own options. Set options for one kind of device with a mesh rule: "
            'mesh_rules=(("NVIDIA H100.*", mw.override({"compile.options": {"xla_gpu_…": True}})),).'
        ) from None
